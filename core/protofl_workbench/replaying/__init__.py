"""Replay of a run's server on recorded uploads, with other options. Nothing is written.

Imports: errors, federation, functional, hooks, recorded, records, runs, system.
Start with ``replay.py`` (`protofl.replay`).
"""

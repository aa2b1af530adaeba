"""Sweeps: runs over a grid of options.

Imports: batch, comparing, errors, recorded, records, runs, system.
Start with ``sweep_interface.py`` (`protofl.sweep`).
"""

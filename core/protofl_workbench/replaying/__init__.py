"""The server's half of a run again, on the uploads that the run has kept. Nothing is written.

Imports: errors, federation, functional, hooks, records, runs, system.
Start with ``replay.py`` (`protofl.replay`).
"""

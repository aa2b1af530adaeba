"""Sweeps: runs over a grid of options, or over points that a search chooses.

Imports: batch, errors, records, runs, system.
Start with ``program.py`` (`protofl.sweep`).
"""

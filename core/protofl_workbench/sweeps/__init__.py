"""Sweeps: runs over a grid of options, or over points that a search chooses.

Imports: batch, comparing, errors, recorded, records, runs, system.
Start with ``sweep_interface.py`` (`protofl.sweep`).
"""

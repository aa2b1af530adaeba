"""Reproductions: tables and figures of papers as files, their runs, and our figures beside them.

Imports: batch, comparing, data, errors, federation, hooks, plots, recorded, records, runs, system,
testing.
Start with ``reproduction.py`` and ``reproduction_interface.py`` (`protofl.reproduction`,
`protofl.reproduce`).
"""

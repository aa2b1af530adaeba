"""Tables and figures of papers as data: rows, columns, settings, published figures, and ours.

Imports: batch, comparing, data, errors, federation, hooks, plots, records, runs, system, testing.
Start with ``study.py`` and ``program.py`` (`protofl.study`, `protofl.reproduce`).
"""

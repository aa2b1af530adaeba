"""Studies: tables and figures of papers as files, their runs, and our figures beside them.

Imports: batch, comparing, data, errors, federation, hooks, plots, records, runs, system, testing.
Start with ``study.py`` and ``study_interface.py`` (`protofl.study`, `protofl.reproduce`).
"""

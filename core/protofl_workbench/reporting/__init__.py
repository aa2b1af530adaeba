"""A page about runs: HTML in one file, which needs no network and no script.

Imports: comparing, errors, hooks, plots, records, runs, studies, system.
Start with ``page.py`` (`protofl.report`).
"""

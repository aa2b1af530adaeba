"""HTML pages about runs: one file, without network access or required scripts.

Imports: comparing, data, errors, hooks, plots, recorded, records, system.
Start with ``page.py`` (`protofl.report`).
"""

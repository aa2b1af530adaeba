"""HTML pages about runs and reproductions: one file, without network access or required scripts.

Imports: comparing, data, errors, hooks, plots, records, runs, reproductions, system.
Start with ``page.py`` (`protofl.report`).
"""

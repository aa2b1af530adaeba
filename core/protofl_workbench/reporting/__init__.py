"""HTML pages about runs and reproductions: one file, without network access or required scripts.

Imports: comparing, data, errors, hooks, plots, recorded, records, reproductions, system.
Start with ``page.py`` (`protofl.report`).
"""

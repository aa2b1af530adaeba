"""HTML pages about runs and studies: one file, without network access or required scripts.

Imports: comparing, errors, hooks, plots, records, runs, studies, system.
Start with ``page.py`` (`protofl.report`).
"""

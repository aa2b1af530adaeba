"""Results to share: published folders and their verification.

Imports: comparing, errors, federation, hooks, plots, recorded, records, reporting, runs, system.
Start with ``publication.py`` (`protofl.publish`).
"""

"""Results to share: published folders, their verification, and leaderboards.

Imports: comparing, errors, federation, hooks, plots, recorded, records, reporting, reproductions,
runs, system.
Start with ``publication.py`` (`protofl.publish`).
"""

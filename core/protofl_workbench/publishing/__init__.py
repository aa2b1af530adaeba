"""Results to share: published folders, their verification, and leaderboards.

Imports: comparing, data, errors, hooks, plots, records, reporting, reproductions, runs, system.
Start with ``publication.py`` (``protofl publish``).
"""

"""Run folders: how they are written, read and listed. Nothing here trains.

Imports: data, errors, system.
Start with ``run_folder.py`` (writes), ``reading.py`` (reads) and ``checkpoint.py`` (which files
count).
"""

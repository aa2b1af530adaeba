"""Run folders: how they are written, read, listed and followed. Nothing here trains.

Imports: data, errors, system.
Start with ``run_folder.py`` (writes), ``reading.py`` (reads) and ``checkpoint.py`` (which files
count).
"""

"""Run folders: how they are written, read, listed and followed. Nothing here trains.

Imports: data, errors, system.
Start with ``run_folder.py`` (writes) and ``reading.py`` (reads).
"""

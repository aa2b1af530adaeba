"""Run folders: how they are written, read, listed and followed. Nothing here trains.

Imports: data, errors, system.
Start with ``folder/run_folder.py`` (writes) and ``folder/reading.py`` (reads).
"""

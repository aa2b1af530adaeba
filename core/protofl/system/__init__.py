"""Files, options, random streams and the machine: the ground that other layers stand on.

Imports: errors.
Start with ``options/settings.py`` (every option of a run, declared once) and ``files/``.
"""

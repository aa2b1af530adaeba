"""Files, options, random streams and the machine, for all other layers.

Imports: errors.
Start with ``options/settings.py`` (every option of a run, declared once) and ``files/``.
"""

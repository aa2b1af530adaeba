"""Plugins by the place of their class: ``MODULE:CLASS`` or ``FILE.py:CLASS``."""

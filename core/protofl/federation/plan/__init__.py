"""The plan of a run: its settings, and all that they resolve to."""

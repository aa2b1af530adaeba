"""Where in a run's folder it is."""

OBSERVED, UPLOADS = "observed", "uploads"
"""Folders of a run: what was observed, and what clients sent."""

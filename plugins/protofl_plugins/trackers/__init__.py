"""Trackers: where else a run is written down."""

"""Profiles of runs (``--profile``)."""

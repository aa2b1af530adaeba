"""Recorded runs as objects, and runs that are only trained as far as they are missing."""

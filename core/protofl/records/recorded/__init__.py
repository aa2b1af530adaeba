"""Runs that have been made: read as objects, recognised, and not made twice."""

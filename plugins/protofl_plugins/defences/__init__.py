"""Defences: robust rules that methods take in the place of their own aggregation."""

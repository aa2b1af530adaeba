"""Runs beside each other: their figures, what they are grouped by, and statistics over pairs."""

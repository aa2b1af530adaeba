"""Recorded runs side by side: their figures, groups, and statistics over pairs.

Imports: errors, records, runs, system.
Start with ``compare.py`` (`protofl.compare`).
"""

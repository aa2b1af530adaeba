"""Compare recorded runs: groups, figures, and statistics over pairs of trials.

Imports: errors, records, runs, system.
Start with ``compare.py`` (`protofl.compare`).
"""

"""Compare recorded runs: groups, figures, and statistics over pairs of trials.

Imports: data, errors, recorded, records, system.
Start with ``compare.py`` (`protofl.compare`).
"""

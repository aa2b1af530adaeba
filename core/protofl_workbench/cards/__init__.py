"""Method cards: the page of a method, its payload sizes, its cost, and published figures.

Imports: errors, federation, hooks, reproductions, system, testing.
Start with ``payload_sizes.py``.
"""

"""Many runs, several at once in worker processes: tried before, told of at the end.

Imports: data, errors, federation, records, runs, system.
Start with ``batch.py``.
"""

"""Batches: many runs, several at once in worker processes, each checked before any training.

Imports: data, errors, federation, recorded, records, runs, system.
Start with ``run_batch.py``.
"""

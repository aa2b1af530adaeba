"""Data: images in memory-mapped caches, their split over clients, and batches.

Imports: errors, system.
Start with ``dataset.py``, then ``split.py`` and ``batches.py``.
"""

"""Data: images in memory-mapped caches, their split over clients, and batches."""

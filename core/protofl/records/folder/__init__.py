"""A run's folder on disk: what is written there, and what reads it again."""

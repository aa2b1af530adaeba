"""Model groups."""

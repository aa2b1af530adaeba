"""A run from its request to its summary."""

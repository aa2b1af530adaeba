"""A round, step by step."""

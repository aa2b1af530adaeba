"""Configuration, identity and kept weights of a run."""

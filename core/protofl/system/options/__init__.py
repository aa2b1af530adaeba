"""Options: their declarations with ranges and defaults, and their text forms."""

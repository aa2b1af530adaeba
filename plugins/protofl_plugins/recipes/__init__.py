"""Published recipes: ``NAME.toml`` for every entry point ``NAME`` that names this package."""

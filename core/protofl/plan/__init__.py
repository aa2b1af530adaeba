"""The plan of a run: settings, how users write them, recipes, what is resolved."""

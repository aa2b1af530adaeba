"""How weights are updated: learning rates by round, and torch's optimisers by name."""

"""Discovery: which plugins there are, by entry points, and whether their classes keep the rules."""

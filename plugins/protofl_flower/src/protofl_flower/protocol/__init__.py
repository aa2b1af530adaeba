"""Messages between a run and its nodes, and the ways on which they travel."""

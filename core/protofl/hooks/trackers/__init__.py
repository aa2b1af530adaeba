"""What trackers are: their hooks, and a run as they are told of it."""

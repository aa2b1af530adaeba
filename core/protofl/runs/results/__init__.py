"""What a run writes and what is read of it."""

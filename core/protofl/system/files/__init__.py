"""Files: whole or not at all, with tensors in them, and one writer at a time."""

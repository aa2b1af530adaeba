"""A run's life: the loop, the dry step, the record."""

"""A model group of one net at five widths, and a partitioner that skews quantities alone."""

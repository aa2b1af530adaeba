"""A model group of one network at five widths, and a partitioner with quantity skew."""

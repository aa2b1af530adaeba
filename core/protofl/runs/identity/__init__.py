"""Which runs are one: what results depend on, as a hash, and what differs between two."""

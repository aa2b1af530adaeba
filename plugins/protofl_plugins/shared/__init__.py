"""Steps that several methods share, as functions that a method's hooks call by name."""

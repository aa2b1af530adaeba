"""A toolkit for backends whose hosts live in other processes: dealing, moving, replacing."""

"""Backends: where hosts live."""

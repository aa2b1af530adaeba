"""Tools for testing plugins."""

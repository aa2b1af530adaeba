"""The plan of a run: options, data, models and their checks."""

"""Trackers at work: a thread for each, beside the run."""

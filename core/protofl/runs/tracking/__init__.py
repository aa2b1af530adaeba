"""Trackers at work: a thread for each, beside the run.

A run's events (`rounds.events`) pass through `following` on their way to the screen; it puts each
round's line of the record in the queue of every tracker, whose thread (`told`) calls the plugin's
hooks (`trackers`). What goes wrong there comes back as notes, in the run's own thread.
"""

"""The dry step: two short rounds on throw-away copies, and what they show."""

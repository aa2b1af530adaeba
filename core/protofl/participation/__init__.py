"""Who takes part in a round, and when the round is over in virtual time."""

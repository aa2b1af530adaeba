"""A run's life: it is planned, tried, trained and concluded, or taken up again."""

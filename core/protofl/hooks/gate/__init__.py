"""The gate: what a payload from elsewhere must be before a hook sees it."""

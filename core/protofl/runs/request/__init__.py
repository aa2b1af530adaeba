"""From options to a request."""

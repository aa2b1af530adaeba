"""Device models."""

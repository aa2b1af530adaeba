"""JSON output of commands."""

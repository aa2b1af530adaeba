"""Virtual time and devices."""

"""Options: as models declare them, with ranges and defaults, and as users write them."""

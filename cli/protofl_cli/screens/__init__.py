"""Tables and lines on the screen."""

"""Discovery of plugins by entry points, and checks of their classes."""

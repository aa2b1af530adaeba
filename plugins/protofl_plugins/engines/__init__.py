"""Training engines."""

__tracebackhide__ = True  # an error in a loss is the method's, not the engine's that calls it

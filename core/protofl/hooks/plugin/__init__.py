"""The plugins of a run: chosen with their options, composed, and the loss that follows."""

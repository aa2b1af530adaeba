"""The plugins of a run: their options, their composition, and the loss of local training."""

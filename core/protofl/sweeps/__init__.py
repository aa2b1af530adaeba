"""Sweeps: runs over a grid of options, or over points that a search chooses; the best is named."""

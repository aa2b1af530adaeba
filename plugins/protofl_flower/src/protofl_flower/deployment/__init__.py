"""Deployed runs: keys and certificates, files of a federation, and Flower's programs."""

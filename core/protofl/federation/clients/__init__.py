"""Clients on a host: their state, training and evaluation."""

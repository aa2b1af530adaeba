"""Payloads, the server's knowledge, weights, and the names of their keys."""

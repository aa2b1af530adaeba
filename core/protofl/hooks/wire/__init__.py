"""Payloads, the server's global state, weights, and the names of their keys."""

"""Wrappers around payloads."""

"""Transforms around payloads."""

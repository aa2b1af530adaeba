"""Selections."""

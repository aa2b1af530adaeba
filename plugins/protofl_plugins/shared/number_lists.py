"""Options that list numbers with commas between, one for each client in turn."""

from __future__ import annotations


def joined(value: object) -> object:
    """Return the text of a list, such as ``8,4,2``; any other value as text."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

"""Values of options as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_text(value: Any) -> str:  # noqa: ANN401 - options are of many types
    """Return the value of an option as users write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        value = [f"{key}={value_text(one)}" for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return ",".join(map(value_text, value)) or "none"
    return str(value)

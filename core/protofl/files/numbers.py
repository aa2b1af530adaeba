"""Numbers as files of JSON hold them."""

from __future__ import annotations

import math


def finite(value: float) -> float | None:
    """A number; NaN and infinity, which JSON has no word for, are null."""
    return value if math.isfinite(value) else None


def short(value: float) -> float:
    """A measured number with the digits that mean something."""
    return float(f"{value:.6g}")

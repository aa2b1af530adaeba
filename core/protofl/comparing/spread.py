"""How a figure is spread over clients: the worst, the lowest tenth, deviation, Gini."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def worst(values: Iterable[float]) -> float:
    """The smallest of some values; NaN of none."""
    return float(min(values, default=math.nan))


def lowest_decile(values: Iterable[float]) -> float:
    """The mean of the lowest tenth of M values, ⌈M/10⌉ of them; NaN of none."""
    ordered = np.sort(np.fromiter(values, dtype=np.float64))
    return float(ordered[: math.ceil(len(ordered) / 10)].mean()) if len(ordered) else math.nan


def deviation(values: Iterable[float]) -> float:
    """The (population) standard deviation; NaN of none."""
    own = np.fromiter(values, dtype=np.float64)
    return float(own.std()) if len(own) else math.nan


def gini(values: Iterable[float]) -> float:
    """Gini coefficient Σᵢⱼ|xᵢ − xⱼ| / (2M²x̄) of M values ≥ 0: 0 where all are equal.

    Computed from the sorted values x₍₁₎ ≤ … ≤ x₍M₎ as Σᵢ(2i − M − 1)x₍ᵢ₎ / (M²x̄); NaN of none, 0
    where all are 0.
    """
    ordered = np.sort(np.fromiter(values, dtype=np.float64))
    count, total = len(ordered), float(ordered.sum())
    if not count:
        return math.nan
    if not total:
        return 0.0
    weights = 2 * np.arange(1, count + 1) - count - 1
    return float((weights * ordered).sum() / (count * total))

"""Numbers with 95 % intervals: shares, areas under the ROC curve, and means over clients or rows.

- Shares: Wilson's score interval (Wilson, "Probable inference, the law of succession, and
  statistical inference", JASA 1927).
- Areas: Wilson's interval, for the number of decisions whose share has DeLong's variance (DeLong et
  al., "Comparing the areas under two or more correlated receiver operating characteristic curves",
  Biometrics 1988), which is computed by ranks (Sun and Xu, 2014).
- Means: percentile bootstrap over independent units, which are clients or reconstructed rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Number:
    """A number with its interval, or the reason why it was not measured.

    Attributes:
        value: The number; None if it was not measured.
        low: Lower end of the 95 % interval.
        high: Upper end.
        units: The number of independent units behind it: samples, clients, rows.
        why: The reason why it was not measured.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    units: int = 0
    why: str = ""

    def to_values(self) -> dict[str, Any]:
        """Return the fields for JSON, without empty ones."""
        fields = {k: v for k, v in vars(self).items() if v is not None and v != ""}
        return {"value": self.value, **fields}

    def text(self, digits: int = 3) -> str:
        """Return ``0.731 [0.702, 0.760]``, or ``not measured: REASON``."""
        if self.value is None:
            return f"not measured: {self.why}" if self.why else "not measured"
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def share(hits: int, total: int) -> Number:
    """Return hits / total with Wilson's interval."""
    if total == 0:
        return Number(None, why="there are no samples")
    return Number(hits / total, *_wilson(hits / total, total), total)


def _wilson(value: float, total: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of ``total`` decisions, which may be a fraction."""
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    centre, scale = value + z**2 / (2 * total), 1 + z**2 / total
    reach = z * math.sqrt(value * (1 - value) / total + (z / (2 * total)) ** 2)
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def area(positives: np.ndarray, negatives: np.ndarray) -> Number:
    """Return the area under the ROC curve with its interval.

    With few samples DeLong's interval θ ± 1.96·√V is too short, because the estimate of V may be
    small by chance: with two positives it has the truth in 70 % of draws. So V only gives the
    number of decisions k = θ(1 − θ)/V of Wilson's interval, times (1.96/t)² with the quantile t of
    Welch's degrees of freedom. k is at most that of a guess, whose variance is known:
    (m + n + 1)/(12·m·n). Without a variance k is min(m, n).

    The samples count as independent. Scores of samples of one client often are not, and the
    interval is too short then.

    Args:
        positives: Scores [m] of positives (members); larger means more likely positive.
        negatives: Scores [n] of negatives.

    Returns:
        θ = P(positive > negative) + P(equal)/2.
    """
    m, n = len(positives), len(negatives)
    if not m and not n:
        return Number(None, why="no sample has a score")
    if m < 2 or n < 2:
        return Number(None, why=f"there are {m} positive and {n} negative samples")
    together = np.concatenate([positives, negatives])
    value = rank_area(np.arange(m + n) < m, together)
    ranks = stats.rankdata(together)
    of_positives = (ranks[:m] - stats.rankdata(positives)) / n
    of_negatives = 1 - (ranks[m:] - stats.rankdata(negatives)) / m
    parts = of_positives.var(ddof=1) / m, of_negatives.var(ddof=1) / n
    decisions, of_a_guess = float(min(m, n)), 3 * m * n / (m + n + 1)
    if (variance := sum(parts)) > 1e-12:
        freedom = variance**2 / (parts[0] ** 2 / (m - 1) + parts[1] ** 2 / (n - 1))
        longer = stats.t.ppf((1 + LEVEL) / 2, freedom) / stats.norm.ppf((1 + LEVEL) / 2)
        decisions = min(value * (1 - value) / variance / longer**2, of_a_guess)
    return Number(value, *_wilson(value, decisions), m + n)


def rank_area(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve by ranks, fast enough for a bootstrap.

    Args:
        labels: True [n] for positives.
        scores: Their scores [n].

    Returns:
        The area; NaN if all labels are equal.
    """
    m = int(labels.sum())
    n = len(labels) - m
    if not m or not n:
        return float("nan")
    return float((stats.rankdata(scores)[labels].sum() - m * (m + 1) / 2) / (m * n))


def rate_at(positives: np.ndarray, negatives: np.ndarray, false_rate: float) -> Number:
    """Return the true-positive rate at a false-positive rate, with Wilson's interval.

    The threshold is the smallest one with at most ``false_rate`` of the negatives above it. Its own
    uncertainty is not in the interval.

    Args:
        positives: Scores [m] of positives.
        negatives: Scores [n] of negatives.
        false_rate: The false-positive rate, 0.01 for 1 %.
    """
    needed = round(1 / false_rate)
    if len(negatives) < needed or not len(positives):
        return Number(None, why=f"needs {needed} held-out samples, has {len(negatives)}")
    allowed = int(false_rate * len(negatives) + 1e-9)
    threshold = np.sort(negatives)[::-1][allowed]
    return share(int((positives > threshold).sum()), len(positives))


def mean(values: Sequence[float] | np.ndarray, seed: int = 0) -> Number:
    """Return the mean of independent units with a percentile bootstrap interval over them."""
    array = np.asarray(values, float)
    return bootstrap(len(array), lambda chosen: float(array[chosen].mean()), seed)


def bootstrap(units: int, figure: Callable[[np.ndarray], float], seed: int = 0) -> Number:
    """Return a figure of independent units with a percentile bootstrap interval over them.

    Args:
        units: Number of units.
        figure: Maps numbers of units [units], some of them repeated, to the figure; NaN if it is
            not defined for them.
        seed: Seed of the draws.
    """
    if units == 0:
        return Number(None, why="there is nothing to measure it on")
    value = figure(np.arange(units))
    if np.isnan(value):
        return Number(None, why="it is not defined for these clients")
    if units < 2:
        return Number(value, units=units)
    generator = np.random.default_rng(seed)
    drawn = [figure(generator.integers(0, units, units)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Number(value, float(low), float(high), units)

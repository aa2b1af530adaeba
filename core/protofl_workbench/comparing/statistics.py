"""Statistics: tests and intervals for a few pairs or two samples, and spreads over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt


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


Floats = npt.NDArray[np.float64]

RESAMPLES = 9_999
"""Resamples of a bootstrap."""


def wilcoxon(differences: Sequence[float] | Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test (1945), exact for any number of pairs.

    Differences of 0 are left out, and equal ones (to 12 decimals) have the mean of their ranks. The
    distribution of the sum of the positive differences' ranks over all 2ⁿ ways to choose signs is
    counted rank by rank, so ties don't make it an approximation.

    Args:
        differences: [n], of pairs.

    Returns:
        p, at least 2^(1−n) of n differences that are not 0; 1 where all are 0; NaN of none.
    """
    own = np.asarray(differences, dtype=np.float64).round(12)
    if not len(own):
        return math.nan
    own = own[own != 0]
    twice = np.rint(2 * _ranks(np.abs(own))).astype(np.int64)  # whole, as ranks may be halves
    chance = np.ones(1)
    for rank in twice:
        longer = np.zeros(len(chance) + rank)
        longer[: len(chance)] += chance / 2
        longer[rank:] += chance / 2
        chance = longer
    positive = int(twice[own > 0].sum())
    smaller = min(positive, int(twice.sum()) - positive)
    return min(1.0, 2 * float(chance[: smaller + 1].sum()))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values have the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: Floats = (last - (count - 1) / 2)[place]
    return mean


def least_p(pairs: int) -> float:
    """The smallest p that `wilcoxon` can have of a number of pairs; NaN of none."""
    return min(1.0, 2.0 ** (1 - pairs)) if pairs else math.nan


def mann_whitney(ours: Sequence[float] | Floats, theirs: Sequence[float] | Floats) -> float:
    """Two-sided p of the Mann-Whitney U test of two samples, by SciPy.

    Args:
        ours: [n].
        theirs: [m].

    Returns:
        p, exact for small samples without ties; NaN where one is empty.
    """
    from scipy.stats import mannwhitneyu

    if not len(ours) or not len(theirs):
        return math.nan
    return float(mannwhitneyu(ours, theirs, alternative="two-sided").pvalue)


def interval(
    ours: Sequence[float] | Floats,
    theirs: Sequence[float] | Floats = (),
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """A bootstrap interval (BCa; Efron 1987) of a mean, or of the difference of two means.

    Args:
        ours: [n], differences of pairs, or a sample.
        theirs: [m], the other sample of which the mean is taken off; none for pairs.
        confidence: How often such intervals hold the mean.
        seed: Of the resamples.

    Returns:
        Its ends. (NaN, NaN) of a sample with fewer than two values. Of three to five values it is
        narrower than it should be: no resample knows more than they do.
    """
    samples = [np.asarray(own, dtype=np.float64) for own in (ours, theirs) if len(own)]
    if not samples or min(map(len, samples)) < 2:
        return math.nan, math.nan
    draws = np.random.default_rng(seed)
    means = [own[draws.integers(len(own), size=(RESAMPLES, len(own)))].mean(1) for own in samples]
    resampled = _taken_off(means)
    found = float(_taken_off([own.mean(keepdims=True) for own in samples])[0])
    shares = _corrected(samples, resampled, found, (1 - confidence) / 2)
    low, high = np.quantile(resampled, shares)
    return float(low), float(high)


def _taken_off(means: Sequence[Floats]) -> Floats:
    return means[0] - means[1] if len(means) > 1 else means[0]


def _corrected(
    samples: Sequence[Floats], resampled: Floats, found: float, tail: float
) -> tuple[float, float]:
    """The shares of resamples at an interval's ends: BCa, or the plain tails where it has none."""
    normal, plain = NormalDist(), (tail, 1 - tail)
    # Half of the ties count as less, as of few values many resamples have the very mean.
    spread = 1e-12 * max(1.0, abs(found))
    below = float((resampled < found - spread).mean() + (resampled <= found + spread).mean()) / 2
    if not 0 < below < 1:
        return plain
    bias = normal.inv_cdf(below)
    # What a value's weight does to the mean of each sample (Davison and Hinkley 1997, 5.3.2).
    influence = [(own - own.mean()) / len(own) for own in samples]
    if len(influence) > 1:
        influence[1] = -influence[1]
    moved = np.concatenate(influence)
    squares = float((moved**2).sum())
    acceleration = float((moved**3).sum()) / (6 * squares**1.5) if squares else 0.0
    ends = []
    for share in plain:
        z = bias + normal.inv_cdf(share)
        ends.append(normal.cdf(bias + z / (1 - acceleration * z)))
    return ends[0], ends[1]


def holm(values: Sequence[float]) -> list[float]:
    """The p of several comparisons, corrected after Holm (1979).

    Args:
        values: [k]; NaN for a comparison that could not be made, which doesn't count.

    Returns:
        [k]: the i-th smallest of k times k − i + 1, not less than any before it, 1 at most.
    """
    made = [n for n, p in enumerate(values) if not math.isnan(p)]
    found, least = [math.nan] * len(values), 0.0
    for rank, number in enumerate(sorted(made, key=lambda n: values[n])):
        least = max(least, min(1.0, (len(made) - rank) * values[number]))
        found[number] = least
    return found

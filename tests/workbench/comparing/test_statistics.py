"""Tests of p-values, intervals and spreads against slow versions and SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from protofl_workbench.comparing import run_figures
from protofl_workbench.comparing.statistics import (
    holm,
    interval,
    least_p,
    wilcoxon,
)


def by_all_signs(differences):
    """Return Wilcoxon's p from all 2ⁿ choices of signs."""
    own = [d for d in differences if d]
    if not own:
        return 1.0
    ranks = scipy.stats.rankdata(np.abs(own))
    total, there = ranks.sum(), ranks[np.array(own) > 0].sum()
    sums = [
        sum(r for r, positive in zip(ranks, signs, strict=True) if positive)
        for signs in itertools.product([0, 1], repeat=len(own))
    ]
    far = abs(there - total / 2)
    return float(np.mean([abs(s - total / 2) >= far - 1e-9 for s in sums]))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("coarse", [False, True])
def test_wilcoxon_counts_all_signs(count, coarse):
    """The p-value is exact, also with ties and zeros."""
    draws = np.random.default_rng(count)
    for _ in range(5):
        own = draws.integers(-3, 4, count) if coarse else draws.normal(0.4, 1, count)
        assert wilcoxon(own) == pytest.approx(by_all_signs(own), abs=1e-12)


def test_wilcoxon_is_scipy_s():
    draws = np.random.default_rng(1)
    for count in (4, 10, 40):
        own = draws.normal(0.3, 1, count)
        theirs = scipy.stats.wilcoxon(own, method="exact").pvalue
        assert wilcoxon(own) == pytest.approx(theirs, rel=1e-9)


def test_p_has_a_least_value():
    assert [least_p(n) for n in (1, 3, 5)] == [1, 0.25, 0.0625]
    for count in (1, 3, 5, 6):
        assert wilcoxon(np.arange(1, count + 1)) == pytest.approx(least_p(count))
    assert wilcoxon([0, 0]) == 1 and math.isnan(wilcoxon([])) and math.isnan(least_p(0))


@pytest.mark.parametrize("count", [3, 9, 30])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_are_students(count, confidence):
    """SciPy's t test of one sample has the same interval."""
    own = np.random.default_rng(count).exponential(1, count)
    their = scipy.stats.ttest_1samp(own, 0).confidence_interval(confidence)
    assert interval(own, confidence) == pytest.approx(tuple(their))
    assert all(map(math.isnan, interval(own[:2], confidence)))


def coverage(count):
    """Return the share of 1,000 samples whose 95 % interval holds the mean, in %."""
    samples = np.random.default_rng(count).normal(1, 1, (1000, count))
    ends = [interval(own) for own in samples]
    return 100 * np.mean([low <= 1 <= high for low, high in ends])


@pytest.mark.parametrize("count", [3, 5, 9])
def test_intervals_of_few_values_hold_the_mean(count):
    assert 93 <= coverage(count) <= 97


def test_intervals_of_too_few_values():
    assert interval([2.0, 2.0, 2.0]) == (2, 2)
    assert all(map(math.isnan, interval([1.0])))
    assert all(map(math.isnan, interval([])))


def by_steps(values):
    """Return Holm's correction by definition: reject in ascending order while p ≤ α/(k − i)."""
    found = {}
    for number in range(len(values)):
        # Try all relevant α to find the least one that rejects this value.
        for alpha in sorted({min(1.0, p * k) for p in values for k in range(1, len(values) + 1)}):
            rejected = []
            for i, n in enumerate(sorted(range(len(values)), key=lambda n: values[n])):
                if values[n] * (len(values) - i) > alpha + 1e-12:
                    break
                rejected.append(n)
            if number in rejected:
                found[number] = alpha
                break
        else:
            found[number] = 1.0
    return [found[n] for n in range(len(values))]


def test_holm_rejects_step_by_step():
    draws = np.random.default_rng(2)
    for count in (1, 2, 4, 6):
        values = draws.uniform(0, 0.4, count).tolist()
        assert holm(values) == pytest.approx(by_steps(values))
    assert holm([0.01, math.nan, 0.02])[::2] == pytest.approx([0.02, 0.02])


def test_spreads_over_clients():
    draws = np.random.default_rng(3)
    for count in (1, 7, 10, 11, 40):
        own = draws.uniform(0, 1, count).tolist()
        pairs = sum(abs(a - b) for a in own for b in own)
        assert run_figures.gini(iter(own)) == pytest.approx(pairs / (2 * count**2 * np.mean(own)))
        lowest = sorted(own)[: -(-count // 10)]
        assert run_figures.lowest_decile(iter(own)) == pytest.approx(sum(lowest) / len(lowest))
    assert run_figures.gini(iter([0, 0])) == 0
    assert run_figures.gini(iter([0, 0, 0, 1])) == pytest.approx(0.75)

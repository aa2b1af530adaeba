"""Tests of p-values, intervals and spreads against slow versions and SciPy."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from protofl_workbench.comparing import run_figures
from protofl_workbench.comparing.statistics import (
    FEW,
    bootstrap_interval,
    holm,
    interval,
    least_p,
    mann_whitney,
    mcnemar,
    wilcoxon,
)

PAGE = Path(__file__).parents[3] / "docs/how-to/compare-runs.md"


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


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        *[(121, 59, 4e-6), (70, 59, 0.378688), (80, 59, 0.089452)],
        *[(30, 60, 0.00206), (10, 30, 0.002221), (10, 10, 1.0)],
    ],
)
def test_mcnemar_has_the_values_of_statsmodels(ours, theirs, p):
    """They are those of statsmodels' own tests, computed by VassarStats."""
    assert mcnemar(ours, theirs) == pytest.approx(p, abs=5e-7)


def test_mcnemar_is_scipy_s_and_counts_all_outcomes():
    """Against SciPy's exact test, and the sum of the probabilities of all as unequal outcomes."""
    assert mcnemar(0, 0) == 1.0 and mcnemar(0, 6) == 2**-5
    for ours, theirs in itertools.product(range(9), range(9)):
        if number := ours + theirs:
            far = abs(ours - number / 2)
            chance = [math.comb(number, k) / 2**number for k in range(number + 1)]
            slow = sum(c for k, c in enumerate(chance) if abs(k - number / 2) >= far)
            assert mcnemar(ours, theirs) == pytest.approx(slow, abs=1e-12)
            exact = scipy.stats.binomtest(min(ours, theirs), number, 0.5).pvalue
            assert mcnemar(ours, theirs) == pytest.approx(exact, abs=1e-12)


def test_p_has_a_least_value():
    assert [least_p(n) for n in (1, 3, 5)] == [1, 0.25, 0.0625]
    for count in (1, 3, 5, 6):
        assert wilcoxon(np.arange(1, count + 1)) == pytest.approx(least_p(count))
    assert wilcoxon([0, 0]) == 1 and math.isnan(wilcoxon([])) and math.isnan(least_p(0))


def test_two_samples_are_compared_as_scipy_does():
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)  # 2 of 20 arrangements
    assert math.isnan(mann_whitney([], [1.0]))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("count", [5, 12, 30])
def test_bootstrap_intervals_are_scipy_s(count, pairs):
    """Two bootstraps of 9,999 resamples agree up to their random error."""
    draws = np.random.default_rng(count)
    own = (draws.exponential(2, count), draws.normal(0, 1, count + 3))
    samples = own[:1] if pairs else own

    def of(*each, axis=-1):
        means = [one.mean(axis) for one in each]
        return means[0] - means[1] if len(means) > 1 else means[0]

    their = scipy.stats.bootstrap(samples, of, method="BCa").confidence_interval
    width = their.high - their.low
    found = bootstrap_interval(*samples)
    assert found == pytest.approx((their.low, their.high), abs=0.06 * width)
    if count >= FEW:
        assert interval(*samples) == found


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_of_few_values_are_students(count, confidence):
    """SciPy's t tests of one sample, and of two samples with other variances (Welch)."""
    draws = np.random.default_rng(count)
    one, other = draws.exponential(1, count), draws.exponential(5, 20)
    their = scipy.stats.ttest_1samp(one, 0).confidence_interval(confidence)
    assert interval(one, (), confidence) == pytest.approx(tuple(their))
    their = scipy.stats.ttest_ind(one, other, equal_var=False).confidence_interval(confidence)
    assert interval(one, other, confidence) == pytest.approx((their.low, their.high))
    assert interval(other, one, confidence) == pytest.approx((-their.high, -their.low))


def test_an_interval_of_two_samples_of_other_sizes():
    """Compare five values with twenty that have five times the spread."""
    draws = np.random.default_rng(40)
    own = draws.exponential(1, 5), draws.exponential(5, 20)

    def of(one, other, axis=-1):
        return one.mean(axis) - other.mean(axis)

    their = scipy.stats.bootstrap(own, of, method="BCa", random_state=1).confidence_interval
    width = their.high - their.low
    found = bootstrap_interval(*own)
    assert found == pytest.approx((their.low, their.high), abs=0.06 * width)


def coverage(method, count, draws):
    """Return the share of 1,000 samples whose 95 % interval holds the mean, in %."""
    samples = draws(np.random.default_rng(count), (1000, count))
    ends = [method(own) for own in samples]
    return 100 * np.mean([low <= 1 <= high for low, high in ends])


LAWS = {
    "normal": lambda draws, size: draws.normal(1, 1, size),
    "exponential": lambda draws, size: draws.exponential(1, size),
}


def printed():
    """Return {(distribution, method, pairs): coverage} of the table in the page."""
    lines = PAGE.read_text("utf-8").split("\n| pairs |")[1].split("\n\n")[0].splitlines()
    counts = [int(cell) for cell in lines[0].strip(" |").split("|")]
    found = {}
    for line in lines[2:]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        law, method = name.split(", ")
        values = zip(counts, cells, strict=True)
        found |= {(law, method, n): float(cell) for n, cell in values}
    return found


@pytest.mark.parametrize("count", [3, 5, 9])
def test_intervals_of_few_values_hold_the_mean(count):
    """A BCa bootstrap holds it in 73 to 90 % of the cases."""
    assert 93 <= coverage(interval, count, LAWS["normal"]) <= 97


@pytest.mark.slow
def test_the_page_prints_how_often_intervals_hold_the_mean():
    table = printed()
    assert len(table) == 2 * 2 * 4
    methods = {"t": lambda own: tuple(scipy.stats.t.interval(
        0.95, len(own) - 1, own.mean(), own.std(ddof=1) / len(own) ** 0.5
    )), "BCa": bootstrap_interval}  # fmt: skip
    for (law, method, count), share in table.items():
        # 1,000 samples here and 4,000 for the page: two standard errors are at most 3.3 points.
        assert coverage(methods[method], count, LAWS[law]) == pytest.approx(share, abs=3.3)


def test_intervals_of_too_few_values():
    assert interval([2.0, 2.0, 2.0]) == (2, 2)
    assert all(map(math.isnan, interval([1.0])))
    assert all(map(math.isnan, interval([])))
    draws = np.random.default_rng(1).normal(0, 1, 12)
    assert interval(draws) == interval(draws)  # deterministic


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

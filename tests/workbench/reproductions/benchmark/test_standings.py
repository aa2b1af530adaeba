"""Tests of a benchmark's statistics: against SciPy, simulations, and numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from protofl_workbench.reproductions.benchmark.standings import (
    BETTER,
    EQUAL,
    OPEN,
    WORSE,
    gaps_of,
    setting_of,
    smallest_visible,
    t_test,
)


def run(seed, clients, split="s"):
    """Return the final run of a record; ``clients`` are accuracies."""
    return {
        "seed": seed, "rounds": 9, "chosen_round": 5, "split": f"{split}{seed}",
        "client_accuracy": float(np.mean(clients)),
        "clients": {str(n): float(a) for n, a in enumerate(clients)},
        "upload_bytes": 2_000_000, "download_bytes": 4_000_000,
    }  # fmt: skip


def record(method, runs, **others):
    return {
        "method": method, "setting": "one", "definition": "d", "options": {}, "lr": 0.1,
        "batches": 500, "runs": runs, **others,
    }  # fmt: skip


@pytest.fixture
def records():
    """Return records of methods whose gaps to ``local`` are known, over six seeds."""
    draws = np.random.default_rng(1)
    base = {seed: draws.uniform(0.3, 0.7, 10) for seed in range(6)}

    def shifted(mean, spread):
        noise = draws.normal(0, spread, 6)
        noise -= noise.mean()
        return [run(s, base[s] + mean + noise[s]) for s in base]

    return [
        record("local", shifted(0, 0)),
        record("better", shifted(0.2, 0.01)),
        record("worse", shifted(-0.2, 0.01)),
        record("same", shifted(0.001, 0.001)),
        record("noisy", shifted(0.02, 0.05)),
        record("centralised", [run(s, [0.95] * 10) for s in base]),
        {"method": "fedavg", "setting": "one", "definition": "d", "refused": "one net for all"},
        record("broken", [run(0, [0.9] * 10)], failed="seed 1 diverged", diverged=True),
    ]


def test_p_is_that_of_scipys_paired_t_test():
    draws = np.random.default_rng(0)
    for count in (3, 5, 10):
        one, two = draws.normal(0.3, 1, count), draws.normal(0, 1, count)
        expected = stats.ttest_rel(one, two).pvalue
        assert t_test(one - two) == pytest.approx(expected, rel=1e-9)
    assert (t_test(np.zeros(3)), t_test(np.full(3, 0.5))) == (1, 0)


def test_each_outcome_is_reached_and_bounds_are_not_tested(records):
    setting = setting_of("one", records)
    outcomes = {standing.method: standing.outcome for standing in setting.standings}
    assert outcomes == {
        "better": BETTER, "worse": WORSE, "same": EQUAL, "noisy": OPEN, "local": "",
        "centralised": "", "broken": "",
    }  # fmt: skip
    better = setting.named("better")
    assert better.gap == pytest.approx(0.2) and better.worse_off == 0
    assert (better.upload, better.batches, better.seeds) == (200_000, 50, 6)
    assert setting.named("worse").worse_off == 1
    assert setting.refused == {"fedavg": "one net for all"}
    assert setting.failed == {"broken": "seed 1 diverged"}
    gaps = [standing.gap for standing in setting.standings]
    assert gaps == sorted(gaps, reverse=True)


def test_intervals_are_students_and_p_is_corrected_over_the_methods(records):
    setting = setting_of("one", records)
    noisy = setting.named("noisy")
    gaps = gaps_of(records[4], records[0])
    low, high = stats.t.interval(0.95, 5, gaps.mean(), stats.sem(gaps))
    assert (noisy.low, noisy.high) == pytest.approx((low, high))
    raw = {name: t_test(gaps_of(r, records[0])) for r in records[1:5] if (name := r["method"])}
    assert noisy.p == pytest.approx(max(raw.values()))  # the largest of four: times 1
    least = min(raw, key=raw.get)
    assert setting.named(least).p == pytest.approx(4 * raw[least])


def test_a_gap_needs_the_same_seed_and_split(records):
    other = record("other", [run(s, [0.5] * 10, split="x") for s in range(6)])
    standing = setting_of("one", [*records, other]).named("other")
    assert math.isnan(standing.gap) and (standing.seeds, standing.outcome) == (0, "")


def test_the_smallest_visible_gap_is_seen_as_often_as_it_says():
    """At the 5 % level and with the spread known from 10 seeds, about 80 % of tests find it."""
    draws = np.random.default_rng(2)
    spread = np.array([-1.0, 1.0] * 5)
    spread /= spread.std(ddof=1)
    gap = smallest_visible(spread, 0.05)
    found = [t_test(draws.normal(gap, 1, 10)) < 0.05 for _ in range(2000)]
    assert 0.77 < np.mean(found) < 0.87


def test_two_seeds_have_no_interval_and_no_outcome(records):
    few = [{**r, "runs": r["runs"][:2]} for r in records if "runs" in r]
    setting = setting_of("one", few)
    assert {standing.outcome for standing in setting.standings} == {""}
    assert math.isnan(setting.visible)


def test_nothing_stands_without_records():
    assert setting_of("one", []).standings == ()

"""Tests of a benchmark's statistics: against SciPy, and against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from protofl_workbench.comparing.statistics import wilcoxon
from protofl_workbench.reproductions.benchmark.standings import (
    groups_of,
    mean_ranks,
    setting_of,
    significance,
    worse_off,
)


def run(seed, clients, *, test=None, split="s"):
    """Return the final run of a record; ``clients`` are accuracies."""
    return {
        "seed": seed, "rounds": 9, "chosen_round": 5, "split": f"{split}{seed}",
        "test_accuracy": float(np.mean(clients)) if test is None else test,
        "client_test_accuracy": float(np.mean(clients)), "global_accuracy": 0.25,
        "clients": {str(n): float(a) for n, a in enumerate(clients)},
        "upload_bytes": 2_000_000, "download_bytes": 4_000_000, "seconds_per_round": 0.5,
        "validation_curve": [0.5], "test_curve": [0.5],
    }  # fmt: skip


def record(method, runs, setting="one", **others):
    return {
        "method": method, "setting": setting, "definition": "d", "options": {"dataset": "digits"},
        "lr": 0.1, "runs": runs, **others,
    }  # fmt: skip


def test_p_is_scipys_exact_wilcoxon():
    draws = np.random.default_rng(0)
    for count in (5, 12, 25):
        differences = draws.normal(0.3, 1, count)
        expected = stats.wilcoxon(differences, mode="exact").pvalue
        assert wilcoxon(differences) == pytest.approx(expected, rel=1e-12)


def test_pairs_are_corrected_together_as_by_hand():
    """Three methods in six blocks, by hand.

    b is above a in all six: p = 2/64. c is above a in five, and the smallest difference is
    negative: p = 2·2/64. b − c is 2, 0, 0, 0, −2, −1: of the eight signs of the ranks 1, 2.5, 2.5,
    four have a sum of at most 2.5: p = 1. Holm: 3·2/64, 2·4/64 and 1.
    """
    a = np.arange(1.0, 7.0)
    b = a + np.array([1, 2, 3, 4, 5, 6])
    c = a + np.array([-1, 2, 3, 4, 7, 7])
    assert (wilcoxon(b - a), wilcoxon(c - a), wilcoxon(b - c)) == (2 / 64, 4 / 64, 1)
    found = significance(["a", "b", "c"], np.stack([a, b, c]))
    assert found == {("a", "b"): 6 / 64, ("a", "c"): 8 / 64, ("b", "c"): 1.0}


def test_mean_ranks_are_scipys_with_ties_shared():
    table = np.array([[0.9, 0.5, 0.5], [0.9, 0.6, 0.4], [0.1, 0.7, 0.3]])
    assert mean_ranks(table).tolist() == pytest.approx(
        [(1.5 + 3 + 1) / 3, (1.5 + 2 + 2) / 3, 7 / 3]
    )


def test_groups_are_the_largest_runs_of_neighbours_without_a_difference():
    names = ["a", "b", "c", "d"]
    p = {("a", "b"): 0.9, ("a", "c"): 0.01, ("a", "d"): 0.01, ("b", "c"): 0.2, ("b", "d"): 0.3,
         ("c", "d"): 0.5}  # fmt: skip
    assert groups_of(names, p) == [("a", "b"), ("b", "c", "d")]
    assert groups_of(names, {pair: 0.001 for pair in p}) == []
    assert groups_of(names, {pair: 0.5 for pair in p}) == [("a", "b", "c", "d")]


def test_a_group_needs_every_pair_and_not_only_neighbours():
    p = {("a", "b"): 0.5, ("b", "c"): 0.5, ("a", "c"): 0.04}
    assert groups_of(["a", "b", "c"], p) == [("a", "b"), ("b", "c")]


def test_clients_worse_off_than_alone_and_their_chance_level():
    alone = record("local", [run(0, [0.5, 0.6, 0.7, 0.8]), run(1, [0.1] * 4)])
    assert worse_off(run(0, [0.4, 0.6, 0.9, 0.7]), alone) == (2, 1.5)
    assert worse_off(run(7, [0.4, 0.6, 0.9, 0.7]), alone) is None
    assert worse_off(run(0, [0.4] * 4, split="other"), alone) is None
    assert worse_off(run(0, [0.4] * 4), None) is None


@pytest.fixture
def records():
    """Return records of three methods, two of which are nearly equal, and of the bound."""
    draws = np.random.default_rng(1)
    base = {seed: draws.uniform(0.3, 0.7, 10) for seed in (0, 1, 2)}
    noise = {seed: draws.normal(0, 0.01, 10) for seed in (0, 1, 2)}
    return [
        record("local", [run(s, base[s]) for s in base]),
        record("better", [run(s, base[s] + 0.2) for s in base]),
        record("same", [run(s, base[s] + noise[s]) for s in base]),
        record("centralised", [run(s, [0.95] * 10) for s in base]),
        {"method": "fedavg", "setting": "one", "definition": "d", "refused": "one net for all"},
        record("broken", [run(0, [0.9] * 10)], failed="seed 1 diverged", diverged=True),
    ]


def test_the_standings_of_a_setting(records):
    setting = setting_of("one", records)
    assert setting.ranked[0].method == "better"
    assert {s.method for s in setting.ranked} == {"better", "local", "same"}
    assert setting.blocks == 30
    assert setting.differ("better", "local") and setting.differ("better", "same")
    assert not setting.differ("local", "same")
    assert setting.cliques == (tuple(s.method for s in setting.ranked[1:]),)
    better, bound, broken = map(setting.named, ("better", "centralised", "broken"))
    assert (better.rank, better.mean_rank, better.groups) == (1, 1.0, "")
    assert (better.worse_off, better.chance, better.upload) == (0, 5, 2_000_000)
    assert bound.rank == 0 and math.isnan(bound.mean_rank)
    assert bound.accuracy == pytest.approx(0.95)
    assert broken.rank == 0 and broken.seeds == 1
    assert setting.refused == {"fedavg": "one net for all"}
    assert setting.failed == {"broken": "seed 1 diverged"}
    assert setting.notes == ("broken is not ranked: other seeds or splits than the others",)


def searched(method, best, final, **others):
    """Return a record whose search ends at ``best``, and whose final runs end at ``final``."""
    runs = [{**run(seed, [final] * 10), "validation_curve": [0.1, final]} for seed in (0, 1)]
    scores = [{"lr": 0.1, "validation_accuracy": a} for a in (None, best, best / 2)]
    return record(method, runs, search=scores, **others)


def test_methods_whose_search_ends_far_below_local_are_named():
    weak, fair = searched("weak", 0.39, 0.9), searched("fair", 0.41, 0.9)
    setting = setting_of("one", [searched("local", 0.8, 0.8), weak, fair])
    (note,) = setting.notes
    assert note.startswith("At the end of the search") and "accuracy (80.0 %)" in note
    assert note.endswith(": weak (39.0)")
    assert setting_of("one", [weak, fair]).notes == ()


def test_a_baseline_whose_rate_fails_in_the_final_runs_is_told():
    others = [searched("a", 0.8, 0.9), searched("b", 0.8, 0.85)]
    told = setting_of("one", [searched("local", 0.9, 0.8, lr=0.5), *others]).baseline
    assert told.startswith("`local` has 80.0 % of the validation samples right in its final runs")
    assert "90.0 %" in told and "learning rate of 0.5 may" in told
    assert not setting_of("one", [searched("local", 0.9, 0.86), *others]).baseline
    harder = [searched("a", 0.8, 0.7), searched("b", 0.8, 0.75)]  # seeds that are hard for all
    assert not setting_of("one", [searched("local", 0.9, 0.8), *harder]).baseline
    assert not setting_of("one", others).baseline


def test_an_interval_is_students_over_seeds(records):
    local = setting_of("one", records).named("local")
    values = [r["test_accuracy"] for r in records[0]["runs"]]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (local.low, local.high) == pytest.approx((low, high))


def test_a_method_with_another_split_is_not_ranked(records):
    other = record("other", [run(s, [0.5] * 10, split="x") for s in (0, 1, 2)])
    setting = setting_of("one", [*records, other])
    assert setting.named("other").rank == 0
    assert any(note.startswith("other is not ranked") for note in setting.notes)


def test_nothing_is_ranked_without_records():
    setting = setting_of("one", [])
    assert (setting.standings, setting.cliques, setting.blocks) == ((), (), 0)

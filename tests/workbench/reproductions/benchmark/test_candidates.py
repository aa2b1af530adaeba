"""Tests of the search of a benchmark: the same rates for all, scores by validation alone."""

from __future__ import annotations

import math

import pytest

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.records.row import Row
from protofl_workbench.reproductions.benchmark.candidates import (
    Candidate,
    Weight,
    best_candidate,
    next_candidates,
    validation_score,
    weight_of,
)
from protofl_workbench.reproductions.reproduction import Tuning

TUNING = Tuning.model_validate({"rates": [0.1, 0.3], "factors": [0.0, 0.5, 2.0], "steps": 2})
WEIGHT = Weight("lambda", 2.0)


class Watched(Row):
    """A line of a record that fails if anything but the validation accuracy is read."""

    def __getitem__(self, key):
        assert key.endswith("validation_accuracy"), f"{key} was read"
        return super().__getitem__(key)

    def get(self, key, default=None):
        assert key.endswith("validation_accuracy"), f"{key} was read"
        return super().get(key, default)


def test_a_score_is_the_best_validation_accuracy_and_reads_nothing_else():
    validation, test = [0.5, 0.7, 0.6], [0.9, 0.1, 0.99]
    rows = [
        Watched({"validation_accuracy": v, "test_accuracy": t, "round": n})
        for n, (v, t) in enumerate(zip(validation, test, strict=True))
    ]
    assert validation_score(rows) == 0.7


def test_rounds_without_evaluation_or_number_do_not_count():
    rows = [Row({"validation_accuracy": v}) for v in (None, math.nan, 0.3)]
    assert validation_score(rows) == 0.3
    assert validation_score(rows[:2]) == -math.inf


def test_a_run_that_fine_tunes_is_scored_after_it():
    after = {"validation_accuracy": 0.9, "fine_tuned_validation_accuracy": 0.7}
    rows = [Row({"validation_accuracy": 0.5}), Row(after)]
    assert validation_score(rows) == 0.7


def searched(score, weight=None, tuning=TUNING):
    """Return the candidates that a search tries with these scores, in its order."""
    scores = {}
    while found := next_candidates(tuning, weight, scores):
        scores |= {candidate: score(candidate) for candidate in found}
    return [*scores]


@pytest.mark.parametrize(
    ("best", "rates"),
    [
        (0.1, [0.1, 0.3, 0.0333]),  # 0.1 lies inside after 0.0333 is worse
        (0.0333, [0.1, 0.3, 0.0333, 0.0111]),
        (0.9, [0.1, 0.3, 0.9, 2.7]),
        (50.0, [0.1, 0.3, 0.9, 2.7]),  # two steps beyond the edge at most
        (0.0001, [0.1, 0.3, 0.0333, 0.0111]),
    ],
)
def test_rates_are_tried_until_the_best_lies_inside(best, rates):
    found = searched(lambda c: -abs(math.log(c.rate / best)))
    assert [candidate.rate for candidate in found] == rates


def test_all_rates_come_before_any_weight_and_0_is_among_the_weights():
    def score(candidate):
        weight = WEIGHT.value if candidate.weight is None else candidate.weight
        return -abs(math.log(candidate.rate / 0.1)) - abs(weight - 1.0)

    found = searched(score, WEIGHT)
    assert found[:3] == searched(score)  # a method without a weight has the same rates
    assert found[3:] == [Candidate(0.1, 0.0), Candidate(0.1, 1.0), Candidate(0.1, 4.0)]


def test_weights_grow_while_the_largest_is_the_best():
    found = searched(lambda c: -c.rate + (c.weight or 0) / 1000, WEIGHT)
    weights = [c.weight for c in found if c.weight is not None]
    assert weights == [0.0, 1.0, 4.0, 12.0, 36.0]


def test_a_search_whose_rates_all_diverge_tries_smaller_ones():
    found = searched(lambda c: -math.inf if c.rate > 0.05 else 0.5, WEIGHT)
    assert [c.rate for c in found[:4]] == [0.1, 0.3, 0.0333, 0.0111]
    assert [c for c in searched(lambda c: -math.inf, WEIGHT) if c.weight is not None] == []


def test_a_candidate_gives_its_options():
    assert Candidate(0.2, 0.4).options(WEIGHT) == {"lr": 0.2, "set": {"lambda": 0.4}}
    assert Candidate(0.2).options(WEIGHT) == {"lr": 0.2}


def test_the_first_of_equal_candidates_is_chosen_and_diverged_ones_are_not():
    scores = {Candidate(0.02): -math.inf, Candidate(0.2): 0.5, Candidate(0.2, 1.0): 0.5}
    assert best_candidate(scores) == Candidate(0.2)
    assert best_candidate({Candidate(0.02): -math.inf}) is None


@pytest.mark.parametrize(
    ("method", "weight"),
    [("fedprox", "mu"), ("fedgen", "a"), ("protonorm", "lambda"), ("fedtsp", "lambda"),
     ("fedorgp", "lambda_c"), ("feddistill", "gamma"), ("fedl2g", "weight"), ("local", None),
     ("fedavg", None), ("feddf", None), ("centralised", None)],
)  # fmt: skip
def test_the_main_weight_is_that_of_a_loss_term(method, weight):
    """Not a learning rate (never 0), a temperature, a share (at most 1) or a number of steps."""
    plugin = Registry().load("method", method)
    found = weight_of(getattr(plugin, "Config", pf.Config), None, method)
    assert (found and found.name) == weight


def test_a_stated_weight_wins_and_must_exist():
    config = Registry().load("method", "fedproto").Config
    assert weight_of(config, {"lambda": 0.1}, "fedproto") == Weight("lambda", 0.1)
    assert weight_of(config, {}, "fedproto") is None
    with pytest.raises(pf.UsageError) as found:
        weight_of(config, {"lamda": 0.1}, "fedproto")
    assert "'lambda'" in found.value.near


def test_a_weight_that_may_not_be_0_is_tried_without_it():
    alpha = weight_of(Registry().load("method", "feddyn").Config, {"alpha": 2.0}, "feddyn")
    assert alpha == Weight("alpha", 2.0, may_be_zero=False)
    tried = {c.weight for c in searched(lambda c: c.weight or 0.0, alpha)} - {None}
    assert tried == {1.0, 4.0, 12.0, 36.0}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"seeds": [100]}, "also one of the final runs"),
        ({"rates": [0.3, 0.1]}, "in rising order"),
        ({"columns": {"text": [0.3, 0.1]}}, "in rising order"),
        ({"weights": {"fedproto": {"lambda": 1.0, "tau": 1.0}}}, "one option a row"),
    ],
)
def test_dependent_or_disordered_searches_are_refused(changes, what):
    values = TUNING.model_dump(by_alias=True) | changes
    with pytest.raises(ValueError, match=what):
        Tuning.model_validate(values)

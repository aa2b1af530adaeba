"""Tests of the search of a benchmark: equal budgets, scores by validation accuracy alone."""

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
    first_step,
    second_step,
    validation_score,
    weight_of,
)
from protofl_workbench.reproductions.reproduction import Tuning

TUNING = Tuning.model_validate(
    {"rounds": 4, "rates": [0.02, 0.2], "factors": [0.1, 10.0], "rate-factors": [0.5, 2.0]}
)


class Watched(Row):
    """A line of a record that fails if anything but the validation accuracy is read."""

    def __getitem__(self, key):
        assert key == "validation_accuracy", f"{key} was read"
        return super().__getitem__(key)

    def get(self, key, default=None):
        assert key == "validation_accuracy", f"{key} was read"
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


def test_every_method_has_the_same_number_of_candidates():
    for weight in (None, Weight("lambda", 2.0)):
        candidates = [*first_step(TUNING), *second_step(TUNING, weight, Candidate(0.2))]
        assert len(candidates) == len({*candidates}) == TUNING.candidates == 4


def test_the_second_step_varies_the_weight_or_without_one_the_learning_rate():
    best = Candidate(0.2)
    weighted = second_step(TUNING, Weight("lambda", 2.0), best)
    assert weighted == [Candidate(0.2, 0.2), Candidate(0.2, 20.0)]
    assert weighted[0].options(Weight("lambda", 2.0)) == {"lr": 0.2, "set": {"lambda": 0.2}}
    assert second_step(TUNING, None, best) == [Candidate(0.1), Candidate(0.4)]
    assert best.options(Weight("lambda", 2.0)) == {"lr": 0.2}


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


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"factors": [1.0]}, "the same number of candidates"),
        ({"seeds": [100]}, "also one of the final runs"),
        ({"weights": {"fedproto": {"lambda": 1.0, "tau": 1.0}}}, "one option a row"),
    ],
)
def test_unequal_or_dependent_searches_are_refused(changes, what):
    values = TUNING.model_dump(by_alias=True) | changes
    with pytest.raises(ValueError, match=what):
        Tuning.model_validate(values)

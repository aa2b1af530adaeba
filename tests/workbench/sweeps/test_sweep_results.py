"""Tests of ties between points of a sweep, and of its file of results."""

from __future__ import annotations

import json
import math

import pytest

import protofl as pf
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, SweepResult


def point(lr, *values, samples=100):
    runs = [
        PointRun(
            seed,
            "finished",
            rounds=2,
            figure={"value": value, "test": value, "round": 1, "chosen_on": "validation"},
            samples=samples,
        )
        for seed, value in enumerate(values)
    ]
    return PointResult({"lr": lr}, runs)


def tied(*points):
    return [line.point["lr"] for line in SweepResult("best", list(points)).ties]


def test_points_tie_within_1_96_standard_errors():
    # p = 0.8, n = 100: the standard error of the difference of two means is sqrt(2 · 0.16 / 100).
    margin = 1.96 * math.sqrt(0.8 * 0.2 / 100 + 0.7 * 0.3 / 100)
    assert 0.1 < margin < 0.13
    assert tied(point(0.1, 0.8), point(0.01, 0.7), point(0.001, 0.6)) == [0.01]
    assert tied(point(0.1, 0.8, samples=10_000), point(0.01, 0.7, samples=10_000)) == []


def test_trials_that_differ_widen_the_margin():
    steady = (point(0.1, 0.80, 0.80, samples=10**6), point(0.01, 0.79, 0.79, samples=10**6))
    assert tied(*steady) == []
    spread = (point(0.1, 0.90, 0.70, samples=10**6), point(0.01, 0.79, 0.79, samples=10**6))
    assert tied(*spread) == [0.01]


def test_without_recorded_samples_only_equal_points_tie():
    values = {0.1: 0.8, 0.2: 0.8, 0.3: 0.799}
    assert tied(*(point(lr, value, samples=0) for lr, value in values.items())) == [0.2]


def test_unfinished_points_do_not_tie():
    unfinished = PointResult({"lr": 1.0}, [PointRun(0, "failed")])
    assert tied(point(0.1, 0.8), unfinished) == []


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    return pf.sweep(
        "fedproto",
        grid={"lr": [0.01, 0.1], "lambda": [0.1, 1.0]},
        out=folder / "sweep",
        runs=folder / "runs",
        at_once=0,
        models="mlp",
        dataset="wine",
        clients=3,
        rounds=1,
        validation=0.2,
        dry_run=False,
    )


@pytest.mark.slow
def test_results_have_the_samples_of_the_points(swept):
    samples = pf.load_run(swept.lines[0].runs[0].folder).split().validation_counts.sum()
    assert {run.samples for line in swept.lines for run in line.runs} == {samples}
    assert swept.samples == f"{samples} validation samples"
    assert swept.ties and json.loads((swept.folder / "results.json").read_text())["ties"]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("points", 0, "point"), {"lr": [1]}, "points.0.point.lr is"),
        (("points", 0, "point"), {}, "the same options in all points"),
        (("points", 0, "runs"), [], "points.0.runs is"),
        (("points", 0, "runs", 0, "value"), "x", "points.0.runs.0.value is 'x'"),
        (("points", 0, "runs", 0, "value"), None, "or none of them"),
        (("points", 0, "runs", 0, "rounds"), -1, "points.0.runs.0.rounds is -1"),
        (("points", 0, "runs", 0, "folder"), 7, "points.0.runs.0.folder is 7"),
        (("points",), {}, "points is {}"),
        (("figure",), [], "figure is []"),
    ],
)
def test_results_with_odd_values_are_damaged(swept, tmp_path, place, value, words):
    values = json.loads((swept.folder / "results.json").read_text())
    *outer, last = place
    inner = values
    for key in outer:
        inner = inner[key]
    inner[last] = value
    (tmp_path / "results.json").write_text(json.dumps(values))
    (tmp_path / "sweep.toml").touch()
    with pytest.raises(pf.UsageError, match="is damaged") as caught:
        pf.compare(tmp_path)
    assert words in caught.value.what

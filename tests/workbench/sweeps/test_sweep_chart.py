"""Tests of ties between points of a sweep, and of their picture."""

from __future__ import annotations

import json
import math

import pytest

import protofl as pf
from protofl_workbench.sweeps.sweep_chart import sweep_chart
from protofl_workbench.sweeps.sweep_results import (
    PointResult,
    PointRun,
    SweepResult,
    load_results,
)


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
def test_results_are_read_again_as_they_were_written(swept):
    again = load_results(swept.folder)
    assert again.records() == [
        {**old, "folder": new["folder"]}
        for old, new in zip(swept.records(), again.records(), strict=True)
    ]
    samples = pf.load_run(again.lines[0].runs[0].folder).split().validation_counts.sum()
    assert {run.samples for line in again.lines for run in line.runs} == {samples}
    assert again.samples == f"{samples} validation samples"
    assert again.ties and json.loads((swept.folder / "results.json").read_text())["ties"]


def test_the_picture_has_a_curve_for_each_value_of_the_other_option(swept):
    axes = sweep_chart(swept, x="lr").axes[0]
    assert axes.get_xlabel() == "lr" and axes.get_xscale() == "log"
    assert "validation samples" in axes.get_ylabel()
    curves = [c[0] for c in axes.containers]
    assert [list(curve.get_xdata()) for curve in curves] == [[0.01, 0.1]] * 2
    means = {tuple(line.point.values()): 100 * line.mean("value") for line in swept.lines}
    drawn = sorted(value for curve in curves for value in curve.get_ydata())
    assert drawn == pytest.approx(sorted(means.values()))
    texts = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert texts == ["lambda=0.1", "lambda=1.0", "best", "tie"]
    best, ties = (ring.get_offsets().tolist() for ring in axes.collections[-2:])
    assert best == [[swept.best.point["lr"], 100 * swept.best.mean("value")]]
    assert len(ties) == len(swept.ties)


def test_words_stand_side_by_side():
    lines = [point("sgd", 0.8), point("adam", 0.6)]
    axes = sweep_chart(SweepResult("best", lines)).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["sgd", "adam"]


def test_errors_name_what_to_do(tmp_path, swept):
    with pytest.raises(pf.UsageError, match="no results of a sweep"):
        load_results(tmp_path)
    with pytest.raises(pf.UsageError, match="unknown option of the sweep 'tau'"):
        sweep_chart(swept, x="tau")
    broken = tmp_path / "results.json"
    broken.write_text('{"points": [{}]}')
    with pytest.raises(pf.UsageError, match="is damaged"):
        load_results(tmp_path)


def test_the_command_draws_it(swept, tmp_path):
    from typer.testing import CliRunner

    from protofl_cli.app import app

    out = tmp_path / "sweep.png"
    done = CliRunner().invoke(app, ["plot", "sweep", str(swept.folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.stat().st_size > 3000
    done = CliRunner().invoke(app, ["plot", "sweep", str(swept.folder), str(tmp_path)])
    assert done.exit_code == 2 and "one sweep" in done.output


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
    with pytest.raises(pf.UsageError, match="is damaged") as caught:
        load_results(tmp_path)
    assert words in caught.value.what and "sweep --resume" in caught.value.do

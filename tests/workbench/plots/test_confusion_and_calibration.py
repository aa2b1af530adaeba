"""Tests of confusion matrices by client, and of calibration: they show what was recorded."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_toys import install, train
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.plots import matrices
from protofl_workbench.plots.calibration_chart import (
    calibration,
    calibration_counts,
    calibration_error,
)
from protofl_workbench.plots.matrices import confusion_by_client, confusion_counts, confusions

GIVEN = {"rounds": 3, "partition": "dirichlet", "metrics": "confusion,ece,calibration"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        out = tmp_path_factory.mktemp("confused") / "run"
        return pf.load_run(train("fedproto", out, **GIVEN, record_predictions="last,best").folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        return train("fedproto", tmp_path_factory.mktemp("plain") / "run", rounds=1).folder


def test_the_clients_matrices_add_up_to_that_of_all(run):
    each, row = confusion_by_client(run), run.rows_of()[-1]
    assert sum(each.values()).tolist() == row.metrics["confusion"]["all"]
    for client, counts in each.items():
        accuracy = row.client_accuracies[str(client)]
        assert counts.trace() / counts.sum() == pytest.approx(accuracy)
        assert counts.sum(1).tolist() == run.split().test_counts[client].tolist()


def test_predictions_are_enough_for_the_matrix_of_all(run, monkeypatch):
    counts = confusion_counts(run)
    monkeypatch.setattr(matrices, "METRIC", "not recorded")
    assert confusion_counts(run).tolist() == counts.tolist()


@pytest.mark.slow
def test_small_matrices_are_not_cut_off(run):
    for width in ("column", "neurips-text", "page", 2.0):
        figure = confusions(run, width=width)
        figure.draw_without_rendering()
        page = figure.bbox
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box.y1 <= page.y1 + 5 and box.x1 <= page.x1 + 5 and box.x0 >= -5  # pixels
        below = figure._supxlabel.get_window_extent()
        assert 0 <= below.y0 and below.y1 <= min(a.get_tightbbox().y0 for a in figure.axes)
        assert ": a, b, c, d" in figure._supxlabel.get_text().replace("\n", " ")


def test_each_client_is_drawn(run):
    each = confusion_by_client(run, "best")
    counts = sum(each.values())
    (axes,) = pf.plots.confusion(run, at="best").axes
    has = counts.sum(1) > 0
    shares = np.ma.masked_invalid(axes.get_images()[0].get_array())
    assert np.allclose(shares[has], 100 * counts[has] / counts[has].sum(1, keepdims=True))
    figure = confusions(run, at="best")
    assert len(figure.axes) == len(each)
    for axes, (client, counts) in zip(figure.axes, each.items(), strict=True):
        shown = axes.get_images()[0].get_array()
        known = counts.sum(1) > 0
        assert np.allclose(shown[known], counts[known] / counts[known].sum(1, keepdims=True))
        assert np.ma.getmaskarray(np.ma.masked_invalid(shown))[~known].all()
        assert axes.get_title().startswith(f"client {client}\n")


def test_calibration_is_that_of_the_error(run):
    counts, row = calibration_counts(run), run.rows_of()[-1]
    assert counts.shape == (15, 3) and counts[:, 0].sum() == run.split().test_counts.sum()
    assert calibration_error(counts) == pytest.approx(row.metrics["ece"]["all"])
    assert counts[:, 2].sum() / counts[:, 0].sum() == pytest.approx(row.test_accuracy)
    (axes,) = calibration(run).axes
    known = counts[:, 0] > 0
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx((counts[known, 2] / counts[known, 0]).tolist())
    _, points = axes.get_lines()
    assert points.get_ydata() == pytest.approx((counts[known, 1] / counts[known, 0]).tolist())
    assert f"ECE = {row.metrics['ece']['all']:.3f}" in axes.get_title()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["confusion", "--at", "final"], "unknown round 'final'"),
        (["confusion", "--as", "every"], "unknown form of --as 'every'"),
        (["calibration", "--at", "best"], "calibration has no option --at"),
    ],
)
def test_mistakes(run, tmp_path, words, what):
    kind, *options = words
    out = ["--out", str(tmp_path / "p.png")]
    found = CliRunner().invoke(app, ["plot", kind, str(run.folder), *options, *out])
    assert found.exit_code == 2 and what in found.stderr


def test_what_was_not_recorded_is_said(plain, tmp_path):
    for words, what in (
        (["confusion"], "--metrics confusion"),
        (["confusion", "--as", "each"], "--record-predictions last"),
        (["calibration"], "--metrics calibration"),
    ):
        kind, *options = words
        out = ["--out", str(tmp_path / "p.png")]
        found = CliRunner().invoke(app, ["plot", kind, str(plain), *options, *out])
        assert found.exit_code == 2 and what in found.stderr


@pytest.mark.slow
def test_commands_and_report(run, plain, tmp_path):
    for n, words in enumerate((["confusion", "--as", "each"],
                               ["calibration", "--for", "ieee-column"])):  # fmt: skip
        kind, *options = words
        out = tmp_path / f"{n}.png"
        made = CliRunner().invoke(app, ["plot", kind, str(run.folder), *options, "--out", str(out)])
        assert made.exit_code == 0 and out.stat().st_size > 1000, made.output
    page = pf.report(run)
    several = pf.report([run, plain])
    for title in ("Confusion matrix", "Confusion of each client", "Calibration"):
        assert f">{title}</h" in page
        assert several.count(f">{title}</h") == 1  # in the part of the run that recorded it

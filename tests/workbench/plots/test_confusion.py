"""Tests of confusion matrices: they show what was recorded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from runtime_toys import install, train
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.plots import matrices
from protofl_workbench.plots.matrices import confusion_counts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    given = {"rounds": 3, "partition": "dirichlet", "metrics": "confusion"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        out = tmp_path_factory.mktemp("confused") / "run"
        return pf.load_run(train("fedproto", out, **given, record_predictions="last").folder)


def test_predictions_are_enough_for_the_matrix(run, monkeypatch):
    counts = confusion_counts(run)
    assert counts.tolist() == run.rows_of()[-1].metrics["confusion"]["all"]
    monkeypatch.setattr(matrices, "METRIC", "not recorded")
    assert confusion_counts(run).tolist() == counts.tolist()


def test_shares_of_each_class_are_drawn(run):
    counts = confusion_counts(run)
    (axes,) = pf.plots.confusion(run).axes
    has = counts.sum(1) > 0
    shares = np.ma.masked_invalid(axes.get_images()[0].get_array())
    assert np.allclose(shares[has], 100 * counts[has] / counts[has].sum(1, keepdims=True))
    assert np.ma.getmaskarray(shares)[~has].all()


def test_what_was_not_recorded_is_said(tmp_path, monkeypatch):
    install(monkeypatch)
    plain = train("fedproto", tmp_path / "run", rounds=1).folder
    out = ["--out", str(tmp_path / "p.png")]
    found = CliRunner().invoke(app, ["plot", "confusion", str(plain), *out])
    assert found.exit_code == 2 and "--metrics confusion" in found.stderr


def test_a_client_without_any_hit_has_a_number(run, monkeypatch):
    monkeypatch.setattr(pf.Run, "cross", lambda self, trial: np.array([[0.0, 1.0], [0.5, 0.25]]))
    monkeypatch.setattr(pf.Run, "split", lambda self, trial: SimpleNamespace(client_names=None))
    (axes,) = pf.plots.cross(run).axes
    assert sorted(text.get_text() for text in axes.texts) == ["0", "100", "25", "50"]

"""Tests of ``protofl leak`` as it is typed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app

pytestmark = pytest.mark.slow


@pytest.fixture(params=[False])
def run(tmp_path, monkeypatch, request):
    """A run of a table; by default without recorded uploads."""
    monkeypatch.setenv("COLUMNS", "150")
    generator = np.random.default_rng(0)
    x = generator.random((200, 6), dtype=np.float32)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=generator.integers(0, 3, 200))
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(tmp_path / "cache"))
    found = pf.run(
        "fedproto", models="mlp", dataset=f"npz:{tmp_path / 't.npz'}", clients=3, rounds=2,
        partition="iid", batch_size=16, feature_dim=8, set={"dataset.kind": "table"},
        out=tmp_path / "run", record_uploads=request.param,
        backend="local", device="cpu", engine="eager",
    )  # fmt: skip
    return found.folder


def typed(*words):
    return CliRunner().invoke(app, ["leak", *map(str, words)])


def test_a_run_without_uploads_is_continued_in_another(run):
    before = (run / "metrics.jsonl").read_bytes()
    result = typed(run, "--clients", 1, "--budget", 60)
    assert result.exit_code == 0, result.output
    assert "two rounds were recorded for it" in result.output
    assert "The server knows each client's class counts exactly." in result.output
    assert "counts of all classes, exact" in result.output
    assert "Membership by the number" not in result.output, "other tables are printed with --all"
    assert "An attack that finds nothing proves nothing" in result.output
    values = json.loads((run / "leak" / "leak.json").read_text(encoding="utf-8"))
    assert values["round"] == 1 and values["clients"] == 1
    assert (run / "metrics.jsonl").read_bytes() == before, "the run itself is not changed"
    assert "What the uploads reveal" in pf.report(run)


@pytest.mark.parametrize("run", [True], indirect=True)
def test_shadow_runs_are_trained_and_reported(run):
    result = typed(run, "--shadows", 2, "--at-once", 0, "--budget", 60, "--clients", 1, "--all")
    assert result.exit_code == 0, result.output
    assert "Membership by the number" in result.output
    values = json.loads((run / "leak" / "leak.json").read_text(encoding="utf-8"))
    assert values["shadows"] == 2
    assert {row["rule"] for row in values["membership"]} == {"threshold", "per-class", "lira"}


def test_shadows_need_recorded_uploads(run):
    result = typed(run, "--shadows", 4)
    assert result.exit_code == 2 and "has no recorded uploads" in result.output


@pytest.mark.parametrize("run", [True], indirect=True)
def test_mistakes_are_named(run):
    result = typed(run, "--shadows", 1)
    assert result.exit_code == 2 and "needs at least 2" in result.output
    result = typed(run, "--round", 7)
    assert result.exit_code == 2 and "no uploads of round 7" in result.output

"""Tests of `pf.load_run`: columns, split, models, global state."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from runtime_toys import GIVEN

import protofl as pf
from protofl.backends import Plan
from protofl_workbench.recorded.row_tables import columns_of


@pytest.fixture
def run(made, toys):
    return pf.load_run(made.folder)


def test_what_is_recorded(run, made):
    assert run.config["method"] == "fedproto" and run.settings.clients == 4
    assert run.name == "fedproto"
    assert run.finished and run.state == "finished"
    assert run.rows == made.record and run.summary == made.summary
    assert run.trials == [0, 1] and run.rounds_done == 6
    assert run.accuracies == made.client_accuracies
    assert "fedproto" in repr(run) and "6 of 6 rounds" in repr(run)


def test_columns_have_every_figure_of_every_line(run):
    columns = run.columns
    assert all(len(column) == 6 for column in columns.values())
    assert columns["trial"].tolist() == [0, 0, 0, 1, 1, 1] and columns["trial"].dtype == np.int64
    assert columns["round"].tolist() == [0, 1, 2] * 2
    # --eval-every 2: the first round is not evaluated
    assert np.isnan(columns["test_accuracy"]).tolist() == [True, False, False] * 2
    for n, row in enumerate(sorted(run.rows, key=lambda row: (row["trial"], row["round"]))):
        for client, accuracy in row.get("client_accuracies", {}).items():
            assert columns[f"client_accuracies.{client}"][n] == accuracy
        if row["evaluated"]:
            assert columns["metrics.macro-f1.all"][n] == row["metrics"]["macro-f1"]["all"]
        assert columns["seconds.train"][n] == row["seconds"]["train"]
        assert columns["time"][n] == row["time"]


def test_columns_of_every_type():
    columns = columns_of(
        [
            {"n": 1, "x": 1, "on": True, "some": False, "who": [1, 2], "in": {"a": {"b.c": 3}}},
            {"n": 2, "x": 0.5, "on": False, "who": [3], "in": {"a": {}}, "late": None},
        ]
    )
    assert {name: column.dtype.kind for name, column in columns.items()} == {
        "n": "i",
        "x": "f",
        "on": "b",
        "some": "O",
        "who": "O",
        "in.a.b.c": "f",
        "late": "f",
    }
    assert columns["who"].tolist() == [[1, 2], [3]] and columns["some"].tolist() == [False, None]
    assert columns_of([]) == {}


def test_lines_of_trials_that_went_on_are_in_order(made, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines[:2], *lines[3:], lines[2]]))
    run = pf.load_run(folder)
    assert run.columns["round"].tolist() == [0, 1, 2] * 2
    assert [row["round"] for row in run.rows_of(0)] == [0, 1, 2]
    assert [row["round"] for row in run.rows_of(1, evaluated=True)] == [1, 2]
    assert run.accuracies == made.client_accuracies


def test_as_a_frame(run):
    pandas = pytest.importorskip("pandas")
    frame = run.frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 6
    final = frame[frame["round"] == 2].set_index("trial")["test_accuracy"]
    assert final.to_dict() == {t["trial"]: t["final_test_accuracy"] for t in run.summary["trials"]}


def test_without_pandas_a_frame_is_refused(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(pf.UsageError, match="needs pandas") as caught:
        run.frame()
    assert "pip install 'protofl[pandas]'" in caught.value.do


@pytest.mark.parametrize("trial", [0, 1])
def test_the_split(run, trial):
    split, plan = run.split(trial), Plan.make({**GIVEN, "method": "fedproto", "trials": 2})
    for client in range(4):
        rows = split.train(client)
        assert rows.tolist() == plan.split(trial).train(client).tolist()
        assert split.test(client).tolist() == plan.split(trial).test(client).tolist()
        counted = np.bincount(plan.data.y[rows].numpy(), minlength=4)
        assert counted.tolist() == split.train_counts[client].tolist()
    assert split.public is None and split.classes == ("a", "b", "c", "d")
    assert split.hash == plan.split(trial).hash
    with pytest.raises(pf.UsageError, match="no client 4"):
        split.test(4)
    with pytest.raises(pf.UsageError, match="no trial 2"):
        run.split(2)


def test_a_split_of_other_data_is_refused(made, toys, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    file = folder / "partition.json"
    file.write_text(file.read_text().replace(pf.load_run(folder).split().hash, "0" * 64))
    with pytest.raises(pf.UsageError, match=r"not that of .*partition\.json"):
        pf.load_run(folder).split().train(0)
    config = folder / "config.json"
    digest = pf.load_run(folder).config["data"]["digest"]
    config.write_text(config.read_text().replace(digest, "0" * len(digest)))
    with pytest.raises(pf.UsageError, match="data of tiny are not those"):
        pf.load_run(folder).model(0)


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_client_s_model_scores_as_the_record_says(run, which):
    """The method predicts the class of the nearest prototype in the global state."""
    for trial in (0, 1):
        summary = run.summary["trials"][trial]
        round = 2 if which == "last" else summary["best_round"]
        recorded = run.rows_of(trial)[round]["client_accuracies"]
        known = run.global_state(which, trial)
        assert {*known} >= {"prototypes", "classes"}
        for client in range(4):
            model = run.model(client, which, trial)
            assert not model.training
            x = run.plan.samples(run.plan.split(trial).test(client), channels_last=False)
            with torch.no_grad():
                z = model.features(x.inputs(slice(None)))
            nearest = known["classes"][torch.cdist(z, known["prototypes"]).argmin(1)]
            right = (nearest == x.y).double().mean().item()
            assert right == pytest.approx(recorded[str(client)])


def test_a_client_that_never_trained_is_what_its_seed_made_it(made, toys, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    run = pf.load_run(folder)
    kept = pf.read_weights(folder, "last", 1)
    only = pf.read_weights(folder, "last", 1, clients=[2])
    assert {*kept.clients} == {0, 1, 2, 3} and {*only.clients} == {2}
    assert all(torch.equal(only.clients[2][k], v) for k, v in kept.clients[2].items())
    with pytest.raises(pf.UsageError, match="no client -1"):
        run.model(-1)


def test_a_round_that_was_not_kept_is_refused(made, toys, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    shutil.rmtree(folder / "checkpoint")
    with pytest.raises(pf.UsageError):
        pf.load_run(folder).global_state()


@pytest.mark.slow
def test_reading_needs_no_torch(made):
    code = (
        "import sys, protofl as pf\n"
        f"run = pf.load_run({str(made.folder)!r})\n"
        "run.columns, run.summary, run.settings, run.split().train_counts, run.state\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

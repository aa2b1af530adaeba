"""Tests of predictions by the method's inference, and by exported clients."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

import protofl as pf
from protofl_workbench.recorded import scorer


@pytest.fixture
def run(made, toys):
    return pf.load_run(made.folder)


def samples_of(run, client=0):
    split = run.plan.split(0)
    return run.plan.data.x[split.test(client)], run.plan.data.y[split.test(client)]


@pytest.mark.parametrize("which", ["last", "best"])
def test_predictions_are_those_of_the_evaluation(run, which):
    round = 2 if which == "last" else run.summary["trials"][0]["best_round"]
    recorded = run.rows_of(0)[round]["client_accuracies"]
    for client in range(4):
        x, y = samples_of(run, client)
        found = run.predict(client, x.numpy(), which)
        assert (found == y).double().mean().item() == pytest.approx(recorded[str(client)])


def test_the_head_alone_predicts_otherwise(run):
    x = run.plan.data.x
    prepared = run.plan.model_input(x, False)
    with torch.no_grad():
        head = run.model(0)(prepared).argmax(1)
    assert not torch.equal(head, run.predict(0, x))


def test_samples_of_another_form_are_refused(run):
    with pytest.raises(pf.UsageError, match="the data set has"):
        run.predict(0, run.plan.data.x[:2, ..., 1:])
    with pytest.raises(pf.UsageError, match="has no client 9"):
        run.predict(9, run.plan.data.x)


def test_safetensors_has_weights_download_and_classes(run, tmp_path):
    with safe_open(run.export(0, tmp_path / "a.safetensors"), framework="pt") as file:
        names = set(file.keys())
        assert json.loads(file.metadata()["classes"]) == run.plan.data.classes
        known = run.global_state()["prototypes"]
        assert torch.equal(file.get_tensor("received/prototypes"), known)
    assert {"weights/model.head.weight", "received/classes"} <= names


@pytest.mark.slow
def test_a_full_disk_is_not_a_matter_of_the_method(run, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(scorer, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        run.export(1, tmp_path / "a.pt2")


@pytest.mark.slow
def test_a_torch_export_scores_alike(run, tmp_path):
    program = torch.export.load(run.export(1, tmp_path / "a.pt2")).module()
    x = run.plan.data.x
    for part in (x, x[:3]):
        scores = program(part)
        assert torch.equal(scores.argmax(1), run.predict(1, part))


@pytest.mark.slow
def test_onnx_scores_alike(run, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(run.export(1, tmp_path / "a.onnx", "best"))
    x = run.plan.data.x
    for part in (x, x[:3]):
        [scores] = session.run(None, {"samples": part.numpy()})
        assert np.array_equal(scores.argmax(1), run.predict(1, part, "best").numpy())
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == run.plan.data.classes


def test_another_ending(run, tmp_path):
    with pytest.raises(pf.UsageError, match="unknown ending"):
        run.export(0, tmp_path / "a.pkl")


def test_the_command(run, tmp_path):
    from protofl_cli.app import app

    args = ["export", str(run.folder), str(tmp_path / "a.safetensors"), "--client", "2"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "client" in done.output and (tmp_path / "a.safetensors").is_file()
    assert "protofl score reads .onnx and .pt2" in " ".join(done.output.split())


@pytest.mark.parametrize("wrong", [-1, 30])
def test_token_ids_outside_the_vocabulary_are_refused(wrong):
    sample = pf.datasets.SampleSpec((4,), "tokens", vocabulary=30)
    ids = np.zeros((3, 4), np.int64)
    assert scorer.raw_samples(ids, sample, torch.int64, None).shape == (3, 4)
    ids[2, 1] = wrong
    message = f"(?s)ids from {min(wrong, 0)} to {max(wrong, 0)}.*go from 0 to 29"
    with pytest.raises(pf.UsageError, match=message):
        scorer.raw_samples(ids, sample, torch.int64, None)

"""Tests of ``protofl score``: an exported client scores files as the run does."""

from __future__ import annotations

import csv
import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app
from protofl_workbench.recorded.exported import read_exported


@pytest.fixture
def run(made, toys):
    return pf.load_run(made.folder)


@pytest.fixture
def bundle(run, tmp_path):
    return run.export(1, tmp_path / "client.pt2")


def score(*words):
    return CliRunner().invoke(app, ["score", *map(str, words)], env={"COLUMNS": "250"})


def classes_of(run, x):
    return [run.plan.data.classes[c] for c in run.predict(1, x)]


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_files_are_scored_as_the_run_predicts(run, tmp_path, ending):
    if ending == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    bundle = run.export(1, tmp_path / f"client.{ending}")
    x = run.plan.data.x[:40].numpy()
    np.save(tmp_path / "some.npy", x)
    np.savez(tmp_path / "more.npz", x_test=x[:3], y_test=np.zeros(3, np.int64))
    words = (bundle, tmp_path / "some.npy", tmp_path / "more.npz", "--trust-pickle")
    done = score(*words, "--json")
    assert done.exit_code == 0, done.output
    lines = json.loads(done.output)["samples"]
    expected = classes_of(run, x)
    assert [line["class"] for line in lines] == expected + expected[:3]
    assert [line["sample"] for line in lines] == [*range(40), 0, 1, 2]
    assert lines[-1]["file"].endswith("more.npz")
    rows = [*csv.DictReader(io.StringIO(score(*words, "--format", "csv").output))]
    assert [row["class"] for row in rows] == expected + expected[:3]
    assert [*rows[0]][3:] == [f"score {name}" for name in run.plan.data.classes]
    table = score(*words)
    assert table.exit_code == 0 and str(words[2]) in table.output


def test_the_command_that_export_advises_runs(run, tmp_path):
    words = ["export", str(run.folder), str(tmp_path / "a.pt2")]
    said = CliRunner().invoke(app, words, env={"COLUMNS": "250"}).output
    np.save(tmp_path / "some.npy", run.plan.data.x[:2].numpy())
    advised = said.partition("score samples with: protofl score ")[2].split()
    assert advised[-1] == "SAMPLES" and score(*advised[:-1], tmp_path / "some.npy").exit_code == 0


@pytest.mark.slow
def test_an_image_is_brought_to_the_form_of_the_data(run, bundle, tmp_path):
    client = read_exported(bundle, trust_pickle=True)
    channels, *size = client.sample.shape
    x = run.plan.data.x[0].numpy()
    image = Image.fromarray(x[0] if channels == 1 else x.transpose(1, 2, 0))
    image.save(tmp_path / "same.png")
    assert torch.equal(client.samples_in(tmp_path / "same.png"), torch.from_numpy(x)[None])
    image.resize((60, 40)).save(tmp_path / "larger.png")
    assert client.samples_in(tmp_path / "larger.png").shape == (1, channels, *size)
    done = score(bundle, tmp_path / "same.png", "--trust-pickle", "--json")
    [line] = json.loads(done.output)["samples"]
    assert line["class"] == classes_of(run, x[None])[0]


@pytest.mark.slow
def test_mistakes_are_said_in_a_sentence(run, bundle, tmp_path, capfd, caplog):
    x = run.plan.data.x[:4].numpy()
    np.save(tmp_path / "good.npy", x)
    refused = score(bundle, tmp_path / "good.npy")
    assert refused.exit_code == 2
    assert "pickled objects" in refused.output and "--trust-pickle" in refused.output
    np.save(tmp_path / "narrow.npy", x[..., 1:])
    np.save(tmp_path / "floats.npy", x.astype(np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "other.npz", images=x)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:-40])
    (tmp_path / "broken.pt2").write_bytes(b"nothing")
    whole = run.export(0, tmp_path / "whole.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    with zipfile.ZipFile(tmp_path / "whole.pt2") as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    flipped[largest.header_offset + largest.file_size // 2] ^= 1
    (tmp_path / "flipped.pt2").write_bytes(flipped)
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("archive/version", "3")
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("version", "3")
    run.export(0, tmp_path / "a.safetensors")
    for name, words in (
        ("narrow.npy", "the data set has"),
        ("floats.npy", "float32, the data set has uint8 with pixels from 0 to 255"),
        ("objects.npy", "cannot be read"),
        ("other.npz", "its arrays: images"),
        ("broken.png", "cannot be read"),
        ("broken.npz", "cannot be read"),
        ("none.npy", "no file"),
    ):
        done = score(bundle, tmp_path / name, "--trust-pickle")
        assert done.exit_code == 2 and name in done.output, done.output
        assert words in " ".join(done.output.split()), done.output
    for name, words in (
        ("none.pt2", "no file"),
        ("broken.pt2", "cannot be read as an exported client"),
        ("cut.pt2", "cannot be read as an exported client: BadZipFile"),
        ("flipped.pt2", "was changed"),
        ("other.pt2", "cannot be read as an exported client"),
        ("old.pt2", "cannot be read as an exported client"),
        ("a.safetensors", "possible: .onnx, .pt2; a .safetensors file has weights and no program"),
    ):
        capfd.readouterr()
        done = score(tmp_path / name, tmp_path / "good.npy", "--trust-pickle")
        assert done.exit_code == 2
        assert words in " ".join(done.output.split()), done.output
        told = done.output + "".join(capfd.readouterr()) + caplog.text
        assert "Traceback" not in told and "warnings above" not in told

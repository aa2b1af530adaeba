"""Raw samples of each embedded data set give the recorded accuracy, by `predict` and by files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import sklearn.datasets
import torch
from safetensors import safe_open
from slowness import quick
from typer.testing import CliRunner

import protofl as pf
from protofl.datasets import Preparation
from protofl_cli.app import app
from protofl_plugins.datasets.python_docs import _topics, passages
from protofl_workbench.recorded.exported import read_exported

SETS = {
    "wine": "mlp",
    "breast-cancer": "mlp",
    "digits-series": "cnn1d",
    "digits": "cnn4",
    "digits-domains": "cnn4",
    "python-docs": "text",
}


def raw_samples_of(dataset, run):
    """All samples as they are before protofl reads them; of drawn images, their pixels."""
    if dataset == "wine":
        return sklearn.datasets.load_wine().data
    if dataset == "breast-cancer":
        return sklearn.datasets.load_breast_cancer().data
    if dataset == "digits-series":
        return sklearn.datasets.load_digits().data
    if dataset == "digits":
        shades = sklearn.datasets.load_digits().images
        return np.round(255 * shades / 16).astype(np.uint8)
    if dataset == "digits-domains":
        return run.plan.data.x.numpy()
    texts = [enumerate(passages(topic, 32)) for topic in _topics()]
    found = [(number % 5 == 4, " ".join(words)) for topic in texts for number, words in topic]
    return np.array([text for test in (False, True) for part, text in found if part == test])


@pytest.fixture(scope="module", params=quick(SETS, "wine"))
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "run"
    options = {"rounds": 2, "clients": 3, "partition": "iid", "local_epochs": 1, "keep": "last"}
    result = pf.run(
        "fedproto", models=SETS[request.param], dataset=request.param, out=folder, **options
    )
    run = pf.load_run(result.folder)
    return run, raw_samples_of(request.param, run)


def of_client(run, raw):
    """Raw test samples of client 1, their labels, and how many the record says are right."""
    rows = run.plan.split(0).test(1)
    recorded = run.rows_of(0)[-1]["client_accuracies"]["1"] * len(rows)
    assert recorded == pytest.approx(round(recorded), abs=1e-6)
    return raw[rows.numpy()], run.plan.data.y[rows], round(recorded)


def test_predictions_take_raw_samples(case):
    run, raw = case
    x, y, right = of_client(run, raw)
    assert int((run.predict(1, x) == y).sum()) == right


def test_the_data_set_itself_is_new_data(case):
    run, raw = case
    data, name = run.plan.data, run.config["dataset"]
    rows = slice(data.num_train if data.num_train < len(data.y) else 0, None)
    [line] = run.evaluate(name, [1]).clients
    assert line["correct"] == int((run.predict(1, raw[rows]) == data.y[rows]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_exported_files_take_raw_samples(case, ending, tmp_path):
    if ending == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    run, raw = case
    x, y, right = of_client(run, raw)
    file = run.export(1, tmp_path / f"client.{ending}")
    names = np.array(run.plan.data.classes)[y.numpy()]
    if x.dtype.kind == "U":
        files = [tmp_path / f"{number}.txt" for number in range(len(x))]
        for path, text in zip(files, x, strict=True):
            path.write_text(text)
    else:
        files = [tmp_path / "raw.npy"]
        np.save(files[0], x)
    words = ["score", file, *files, "--trust-pickle", "--json"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    found = [line["class"] for line in json.loads(done.stdout)["samples"]]
    assert int((np.array(found) == names).sum()) == right
    if ending == "pt2" and x.dtype.kind != "U":  # raw rows go in, without any of protofl's code
        client = torch.export.load(file).module()
        seen = torch.from_numpy(x.astype(np.float32) if x.dtype.kind == "f" else x)
        seen = seen[:, None] if seen.dim() < run.plan.data.x.dim() else seen
        assert int((client(seen).argmax(1) == y).sum()) == right


def test_safetensors_say_how_to_prepare(case, tmp_path):
    run, raw = case
    with safe_open(run.export(1, tmp_path / "a.safetensors"), framework="pt") as file:
        recorded = json.loads(file.metadata()["preparation"])
    preparation = Preparation.of_json(recorded, "a.safetensors")
    assert preparation == run.preparation
    if preparation.words is not None:
        stored = preparation.words.ids(map(preparation.words.split, raw))
        assert np.array_equal(stored, run.plan.data.x.numpy())
    elif raw.dtype.kind == "f":
        x = torch.from_numpy(raw.astype(np.float32)).view_as(run.plan.data.x)
        assert torch.equal(preparation(x), run.plan.data.x)  # bit for bit


@pytest.mark.slow
def test_a_run_without_the_record_says_so(case, tmp_path):
    run, raw = case
    folder = tmp_path / "old"
    shutil.copytree(run.folder, folder)
    (folder / "preparation.json").unlink()
    assert pf.load_run(folder).preparation == run.preparation  # of the same data, read again
    old = pf.load_run(folder)
    cached = replace(old.plan.data, preparation=None)  # of a cache that nobody can make anew
    old.plan = replace(old.plan, data=cached)
    rows = old.plan.split(0).test(1)
    _, y, right = of_client(run, raw)
    with pytest.warns(UserWarning, match="no record of what was done to raw samples"):
        found = old.predict(1, old.plan.data.x[rows])
    assert int((found == y).sum()) == right
    client = read_exported(old.export(1, tmp_path / "old.pt2"), trust_pickle=True)
    stored = client.sample.kind != "image"
    assert ("lacks the preparation" in client.lacks) is stored
    np.save(tmp_path / "stored.npy", old.plan.data.x[rows].numpy())
    words = ["score", tmp_path / "old.pt2", tmp_path / "stored.npy", "--trust-pickle"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0 and ("lacks the preparation" in done.stderr) is stored


def test_pixels_of_another_range_are_refused(case):
    run, _ = case
    if run.plan.data.x.dtype != torch.uint8:
        return
    shades = sklearn.datasets.load_digits().images[:4].astype(np.float32)
    shades = np.repeat(shades[..., None], run.plan.data.x.shape[1], 3)
    with pytest.raises(pf.UsageError, match="samples are float32, the data set has uint8 with"):
        run.predict(1, shades)

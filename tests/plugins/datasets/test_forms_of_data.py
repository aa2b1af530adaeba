"""Each form of data through run, compare, report, export and score, as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from slowness import quick
from typer.testing import CliRunner

from protofl_cli.app import app

SCORE = ["--json", "--trust-pickle"]
rng = np.random.default_rng(0)
Y = np.arange(60) % 3
IMAGES = rng.integers(0, 80, (60, 8, 8), dtype=np.uint8) + (60 * Y)[:, None, None].astype(np.uint8)


def medmnist(folder):
    parts = {"train": slice(0, 40), "val": slice(40, 48), "test": slice(48, 60)}
    arrays = {f"{name}_images": IMAGES[rows] for name, rows in parts.items()}
    arrays |= {f"{name}_labels": Y[rows, None].astype(np.uint8) for name, rows in parts.items()}
    np.savez(folder / "pathmnist.npz", **arrays)
    return ["--dataset", f"npz:{folder / 'pathmnist.npz'}", "--partition", "iid", "--clients", "2"]


def hugging_face_images(folder):
    datasets = pytest.importorskip("datasets", reason="needs protofl[hf]")
    import PIL.Image

    made = {"image": [PIL.Image.fromarray(x) for x in IMAGES], "label": Y, "site": Y % 2}
    types = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    features = datasets.Features({**types, "site": datasets.Value("int64")})
    datasets.Dataset.from_dict(made, features).save_to_disk(folder / "set")
    return ["--dataset", f"hf:{folder / 'set'}", "--set", "dataset.client=site"]


def hugging_face_texts(folder):
    datasets = pytest.importorskip("datasets", reason="needs protofl[hf]")
    words = np.array(["alpha beta", "gamma delta", "kappa mu"])
    made = {"text": [f"{words[y]} text {words[y]}" for y in Y], "label": Y}
    datasets.Dataset.from_dict(made).save_to_disk(folder / "set")
    given = ["--dataset", f"hf:{folder / 'set'}", "--partition", "iid", "--clients", "2"]
    return [*given, "--models", "text"]


def several_labels(folder):
    """Labels N×L in MedMNIST's names of arrays, as those of chestmnist."""
    given = medmnist(folder)
    with np.load(folder / "pathmnist.npz") as file:
        arrays = dict(file)
    for name in ("train_labels", "val_labels", "test_labels"):
        arrays[name] = (np.arange(3) == arrays[name]) | (np.arange(3) == 1)
    np.savez(folder / "pathmnist.npz", **arrays)
    return [*given, "--set", "dataset.task=multilabel"]


def command(*words):
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    "form",
    quick(
        [
            *(medmnist, several_labels),
            *(hugging_face_images, hugging_face_texts),
        ],
        medmnist,
    ),
    ids=lambda form: form.__name__,
)
def test_from_a_file_to_scores(tmp_path, form):
    given = form(tmp_path)
    models = [] if "--models" in given else ["--models", "cnn4"]
    run, page, bundle = tmp_path / "run", tmp_path / "page.html", tmp_path / "client.pt2"
    options = ["--rounds", 1, "--local-epochs", 1, "--batch-size", 4, "--device", "cpu"]
    options += ["--out", run, "--data-dir", tmp_path / "data", "--keep", "last"]
    command("run", "fedproto", *given, *models, *options)
    assert "fedproto" in command("compare", run)
    command("report", run, "--out", page)
    assert "fedproto" in page.read_text("utf-8")
    command("export", run, bundle)
    if form is hugging_face_texts:
        new = tmp_path / "new.txt"
        new.write_text("alpha beta text")
    else:
        new = tmp_path / "new.npy"
        np.save(new, rng.integers(0, 256, (1, 1, 8, 8), dtype=np.uint8))
    done = CliRunner().invoke(app, ["score", *map(str, (bundle, new)), *SCORE])
    assert done.exit_code == 0, done.output
    scored = json.loads(done.stdout)
    assert len(scored["samples"]) == 1

"""Tests of MedMNIST by name, with a small file in place of the download."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest

import protofl as pf
from protofl_plugins.datasets.medmnist_sets import MedMNIST

info = pytest.importorskip(
    "medmnist.info", reason="needs the extra medmnist: pip install 'protofl[medmnist]'"
)

rng = np.random.default_rng(0)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Let breastmnist be a small file in the published form."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return publish(
        tmp_path, monkeypatch, "breastmnist", lambda n: (np.arange(n) % 2).astype(np.uint8)[:, None]
    )


def publish(folder, monkeypatch, name, labels):
    """Write a small file in the published form, and let the package name it."""
    arrays = {}
    for part, n in (("train", 6), ("val", 3), ("test", 4)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = labels(n)
    path = folder / "published.npz"
    np.savez_compressed(path, **arrays)
    about = {"url": path.as_uri(), "MD5": hashlib.md5(path.read_bytes()).hexdigest()}
    monkeypatch.setitem(info.INFO, name, {**info.INFO[name], **about})
    return arrays


def decode(folder, name="breastmnist", **options):
    return MedMNIST().decode(config=MedMNIST.Config(name=name, **options), data_dir=folder)


def failure(folder, name, **options):
    with pytest.raises(pf.UsageError) as error:
        decode(folder, name, **options)
    return error.value


def test_a_set_by_its_name(tmp_path, published):
    data = decode(tmp_path)
    assert np.array_equal(data.x[:6, 0].numpy(), published["train_images"])
    assert (data.num_train, len(data.y)) == (6, 10)
    assert data.classes == ["malignant", "normal, benign"]
    assert "3 samples, is left out" in data.note
    assert decode(tmp_path, "BreastMNIST", validation="train").num_train == 9
    assert (tmp_path / "downloads" / "breastmnist.npz").is_file()


def test_a_file_of_the_package_is_used(tmp_path, published, monkeypatch):
    own = tmp_path / "home" / ".medmnist" / "breastmnist.npz"
    own.parent.mkdir(parents=True)
    own.write_bytes((tmp_path / "published.npz").read_bytes())
    assert len(decode(tmp_path).y) == 10 and not (tmp_path / "downloads").exists()
    own.write_bytes(b"damaged")
    assert len(decode(tmp_path).y) == 10 and own.read_bytes() == b"damaged"


def test_names_that_do_not_fit(tmp_path, published):
    assert "did you mean bloodmnist?" in failure(tmp_path, "bloodmnst").near
    assert "holds volumes" in failure(tmp_path, "organmnist3d").what
    about = info.INFO["breastmnist"]
    about["url"] = (tmp_path / "none.npz").as_uri()
    error = failure(tmp_path, "breastmnist")
    assert error.what.startswith("medmnist:breastmnist: download failed")
    assert "put it at" in error.do


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    monkeypatch.delitem(sys.modules, "medmnist.info", raising=False)
    error = failure(tmp_path, "pathmnist")
    assert "--dataset npz:pathmnist.npz" in error.near and "protofl[medmnist]" in error.do


def test_several_labels(tmp_path, monkeypatch):
    """chestmnist is multi-label without asking, and as a file if the task is given."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    arrays = publish(
        tmp_path, monkeypatch, "chestmnist", lambda n: rng.integers(0, 2, (n, 14), dtype=np.uint8)
    )
    data = decode(tmp_path, "chestmnist")
    labels = np.concatenate([arrays["train_labels"], arrays["test_labels"]])
    assert data.task.name == "multilabel" and data.targets.tolist() == labels.tolist()
    assert data.outputs[:2] == ["atelectasis", "cardiomegaly"] and len(data.outputs) == 14
    assert {*data.classes} <= {*data.outputs, "none"}
    same = pf.datasets.read_npz(tmp_path / "published.npz", task="multilabel")
    assert same.targets.equal(data.targets)
    with pytest.raises(pf.UsageError) as error:
        pf.datasets.read_npz(tmp_path / "published.npz")
    assert "--set dataset.task=multilabel" in error.value.do

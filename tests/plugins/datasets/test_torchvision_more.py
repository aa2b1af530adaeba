"""Tests of more torchvision and scikit-learn sets, with small files in official layouts."""

from __future__ import annotations

import codecs
import hashlib
import json
import pickle
import struct
import urllib.request

import joblib
import numpy as np
import pytest
import torchvision.datasets
from PIL import Image
from sklearn.utils import Bunch

import protofl as pf
from protofl_plugins.datasets import sklearn_sets, torchvision_more

rng = np.random.default_rng(0)


def decode(plugin, data_dir, **options):
    config = getattr(plugin, "Config", pf.Config)(**options)
    return plugin().decode(config=config, data_dir=data_dir)


def key(plugin, **options):
    config = getattr(plugin, "Config", pf.Config)(**options)
    return plugin().cache_key(config=config, data_dir=None)


def put(path, content=None, colour=None):
    """Write a file of text or bytes, or a picture of one colour; return its MD5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if colour is not None:
        Image.new("RGB", (24, 18), colour).save(path)
    elif isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(content)
    return hashlib.md5(path.read_bytes()).hexdigest()


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@pytest.mark.parametrize(("split", "classes"), [("balanced", 47), ("letters", 26), ("digits", 10)])
def test_emnist(tmp_path, split, classes):
    x = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
    y = np.array([3, 1, 9, 2, 5, 4, 3], np.uint8)
    raw = tmp_path / "downloads" / "EMNIST" / "raw"
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 7))):
        put(raw / f"emnist-{split}-{part}-images-idx3-ubyte", idx(x[rows]))
        put(raw / f"emnist-{split}-{part}-labels-idx1-ubyte", idx(y[rows]))
    data = decode(torchvision_more.EMNIST, tmp_path, split=split)
    assert np.array_equal(data.x[:, 0].numpy(), x.transpose(0, 2, 1)) and data.num_train == 5
    assert data.y.tolist() == (y - (split == "letters")).tolist()
    assert len(data.classes) == classes
    assert data.classes[2] == {"letters": "c"}.get(split, "2")
    assert key(torchvision_more.EMNIST, split=split) == f"emnist-{split}"


@pytest.mark.parametrize("extra", [False, True])
def test_svhn(tmp_path, monkeypatch, extra):
    from scipy.io import savemat

    loader, kept, files = torchvision.datasets.SVHN, {}, {}
    folder = tmp_path / "downloads"
    folder.mkdir()
    for part, labels in (("train", [1, 10, 3, 9]), ("extra", [2, 2]), ("test", [10, 7])):
        x = rng.integers(0, 256, (32, 32, 3, len(labels)), dtype=np.uint8)
        name = f"{part}_32x32.mat"
        savemat(folder / name, {"X": x, "y": np.array(labels, np.uint8)[:, None]})
        md5 = hashlib.md5((folder / name).read_bytes()).hexdigest()
        files[part], kept[part] = ["http://127.0.0.1:9/", name, md5], (x, labels)
    monkeypatch.setattr(loader, "split_list", files)
    data = decode(torchvision_more.SVHN, tmp_path, extra=extra)
    parts = ["train", "extra", "test"] if extra else ["train", "test"]
    x = np.concatenate([kept[part][0].transpose(3, 2, 0, 1) for part in parts])
    assert np.array_equal(data.x.numpy(), x)
    assert data.y.tolist() == [label % 10 for part in parts for label in kept[part][1]]
    assert data.num_train == len(x) - 2 and data.classes == [str(i) for i in range(10)]
    assert key(torchvision_more.SVHN, extra=extra) == ("svhn-extra" if extra else "svhn")


def test_stl10(tmp_path, monkeypatch):
    loader, folder = torchvision.datasets.STL10, tmp_path / "downloads" / "stl10_binary"
    x = rng.integers(0, 256, (5, 3, 96, 96), dtype=np.uint8)
    y = np.array([1, 10, 4, 2, 10], np.uint8)
    names = [f"class {i}" for i in range(10)]
    put(folder / "class_names.txt", "\n".join(names))
    lists = {}
    for part, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        lists[part] = [
            [
                f"{part}_X.bin",
                put(folder / f"{part}_X.bin", x[rows].transpose(0, 1, 3, 2).tobytes()),
            ],
            [f"{part}_y.bin", put(folder / f"{part}_y.bin", y[rows].tobytes())],
        ]
    unlabelled = ["unlabeled_X.bin", put(folder / "unlabeled_X.bin", b"")]
    monkeypatch.setattr(loader, "train_list", [*lists["train"], unlabelled])
    monkeypatch.setattr(loader, "test_list", lists["test"])
    data = decode(torchvision_more.STL10, tmp_path)
    assert np.array_equal(data.x.numpy(), x) and data.num_train == 3
    assert data.y.tolist() == (y - 1).tolist() and data.classes == names


def reds(data):
    return data.x[:, 0].flatten(1).float().mean(1).round().tolist()


def test_gtsrb(tmp_path):
    base = tmp_path / "downloads" / "gtsrb"
    for label in range(3):
        put(
            base / "GTSRB" / "Training" / f"{label:05d}" / "00000_00000.ppm",
            colour=(40 + label, 0, 0),
        )
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for row, label in enumerate((2, 1)):
        put(base / "GTSRB" / "Final_Test" / "Images" / f"{row:05d}.ppm", colour=(60 + row, 0, 0))
        lines.append(f"{row:05d}.ppm;24;18;1;1;9;9;{label}")
    put(base / "GT-final_test.csv", "\n".join(lines))
    data = decode(torchvision_more.GTSRB, tmp_path)
    assert data.x.shape == (5, 3, 32, 32) and data.num_train == 3
    assert reds(data) == [40, 41, 42, 60, 61] and data.y.tolist() == [0, 1, 2, 2, 1]
    assert data.classes == ["0", "1", "2"]
    assert (
        key(torchvision_more.GTSRB) == "gtsrb-32-squash-v2" != key(torchvision_more.GTSRB, side=48)
    )


def test_food101(tmp_path):
    base = tmp_path / "downloads" / "food-101"
    parts = {"train": {"pizza": 3, "ramen": 2}, "test": {"pizza": 1, "ramen": 1}}
    red = 40
    for part, counts in parts.items():
        names = {dish: [f"{dish}/{part}{i}" for i in range(n)] for dish, n in counts.items()}
        put(base / "meta" / f"{part}.json", json.dumps(names))
        for name in (name for own in names.values() for name in own):
            put(base / "images" / f"{name}.jpg", colour=(red := red + 10, 0, 0))
    data = decode(torchvision_more.Food101, tmp_path, side=16, fit="crop")
    assert data.x.shape == (7, 3, 16, 16) and data.num_train == 5
    assert data.y.tolist() == [0, 0, 0, 1, 1, 0, 1] and data.classes == ["pizza", "ramen"]
    assert np.abs(np.array(reds(data)) - np.arange(50, 120, 10)).max() < 4


@pytest.mark.parametrize("partition", [1, 3])
def test_dtd(tmp_path, partition):
    base = tmp_path / "downloads" / "dtd" / "dtd"
    for red, name in enumerate(("banded/a.png", "dotted/b.png", "banded/c.png", "dotted/d.png")):
        put(base / "images" / name, colour=(50 + red, 0, 0))
    texts = {
        1: ("banded/a.png dotted/b.png", "banded/c.png dotted/d.png", "dotted/d.png banded/a.png")
    }
    texts[3] = tuple(reversed(texts[1]))
    for part, names in zip(("train", "val", "test"), texts[partition], strict=True):
        put(base / "labels" / f"{part}{partition}.txt", "\n".join(names.split()) + "\n")
    data = decode(torchvision_more.DTD, tmp_path, partition=partition, side=16)
    expected = [50, 51, 52, 53, 53, 50]
    assert reds(data) == (expected if partition == 1 else [53, 50, 52, 53, 50, 51])
    assert data.num_train == 4 and data.classes == ["banded", "dotted"]
    keys = {key(torchvision_more.DTD, partition=p) for p in (1, 3)}
    assert len(keys) == 2


def test_covtype(tmp_path):
    folder = tmp_path / "downloads" / "covertype"
    folder.mkdir(parents=True)
    x, y = rng.normal(3, 2, (14, 54)), np.arange(14) % 7 + 1
    joblib.dump(x, folder / "samples_py3", compress=9)
    joblib.dump(y.astype(np.int32), folder / "targets_py3", compress=9)
    plain = decode(sklearn_sets.Covtype, tmp_path, standardise=False)
    assert np.allclose(plain.x.numpy(), x, atol=1e-6) and plain.y.tolist() == (y - 1).tolist()
    assert plain.sample.kind == "table" and len(plain.classes) == 7
    data = decode(sklearn_sets.Covtype, tmp_path)
    assert data.x.mean(0).abs().max() < 1e-4


def test_20_newsgroups(tmp_path):
    names = ["alt.atheism", "sci.space"]
    train = [
        "From: a@b.c\nSubject: x\n\nThe moon and the sun and the stars",
        "Subject: y\n\nthe moon",
    ]
    test = ["Subject: z\n\nThe sun > and Mars"]
    cache = {
        part: Bunch(data=texts, target=np.array(y), target_names=names, filenames=np.array(texts))
        for part, texts, y in (("train", train, [1, 0]), ("test", test, [1]))
    }
    content = codecs.encode(pickle.dumps(cache), "zlib_codec")
    put(tmp_path / "downloads" / "20news-bydate_py3.pkz", content)
    data = decode(sklearn_sets.Newsgroups, tmp_path, length=8)
    # Words that occur twice or more in training: the (4), and (2), moon (2). 0: padding, 1: others.
    assert data.x.tolist() == [
        [2, 4, 3, 2, 1, 3, 2, 1],
        [2, 4, 0, 0, 0, 0, 0, 0],
        [2, 1, 3, 1, 0, 0, 0, 0],
    ]
    assert (data.vocabulary, data.padding, data.num_train) == (5, 0, 2)
    assert data.classes == names and data.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("plugin", "name"),
    [
        *((getattr(torchvision_more, n), n.lower()) for n in ("EMNIST", "SVHN", "STL10", "GTSRB")),
        *((getattr(torchvision_more, n), n.lower()) for n in ("Food101", "DTD")),
        (sklearn_sets.Covtype, "covtype"),
        (sklearn_sets.Newsgroups, "newsgroups"),
    ],
)
def test_without_internet(tmp_path, monkeypatch, plugin, name):
    def refuse(*_, **__):
        raise OSError("no internet")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(pf.UsageError) as error:
        decode(plugin, tmp_path)
    assert f"{name} cannot be downloaded" in error.value.what
    assert error.value.near.startswith("address: http")
    assert "--dataset npz:FILE" in error.value.do

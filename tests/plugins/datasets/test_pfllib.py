"""Tests of data sets that are already split over clients."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.data import cache
from protofl_plugins.datasets.pfllib import PFLlib

rng = np.random.default_rng(0)


def client(n, labels=(0, 1, 2), dtype=np.float32):
    x = rng.normal(size=(n, 1, 4, 4)) if dtype == np.float32 else rng.integers(0, 256, (n, 1, 4, 4))
    return {"x": x.astype(dtype), "y": rng.choice(labels, n)}


def save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, data=content)  # as PFLlib's save_file does


def fill(root, train, test):
    for part, contents in (("train", train), ("test", test)):
        for i, content in enumerate(contents):
            save(root / part / f"{i}.npz", content)


def decode(root, trust=True):
    config = PFLlib.Config(path=str(root), trust_pickle=trust)
    key = PFLlib().cache_key(config=config, data_dir=root)
    return key, PFLlib().decode(config=config, data_dir=root)


def failure(root, trust=True):
    with pytest.raises(pf.UsageError) as error:
        decode(root, trust)
    return error.value


@pytest.fixture
def parts():
    return [client(5), client(3), client(4)], [client(2), client(0), client(1)]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_the_given_split_is_kept(tmp_path, dtype):
    train = [client(n, dtype=dtype) for n in (5, 3, 4)]
    test = [client(n, dtype=dtype) for n in (2, 0, 1)]
    fill(tmp_path / "Fashion MNIST", train, test)
    key, images = decode(tmp_path / "Fashion MNIST")
    assert key.startswith("pfllib-fashion-mnist-")
    assert images.num_train == len(images.y) == 15 and len(images.split) == 3
    assert images.x.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
    for (rows, test_rows), a, b in zip(images.split, train, test, strict=True):
        assert np.array_equal(images.x[rows].numpy(), a["x"])
        assert images.y[rows].tolist() == a["y"].tolist()
        assert np.array_equal(images.x[test_rows].numpy(), b["x"])
        assert images.y[test_rows].tolist() == b["y"].tolist()
    assert sorted(torch.cat([r for pair in images.split for r in pair]).tolist()) == list(range(15))


def test_through_the_cache_no_pickle_is_read_twice(tmp_path, parts):
    fill(tmp_path / "d", *parts)
    key, images = decode(tmp_path / "d")
    kept = cache.load(key, tmp_path / "data", lambda: images, lambda line: None)
    assert [(len(a), len(b)) for a, b in kept.split] == [(5, 2), (3, 0), (4, 1)]
    again = PFLlib.Config(path=str(tmp_path / "d"))
    assert PFLlib().cache_key(config=again, data_dir=tmp_path) == key


def test_nothing_is_read_without_trust(tmp_path, parts):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    fill(tmp_path / "d", *parts)
    save(tmp_path / "d" / "train" / "0.npz", Trap())
    error = failure(tmp_path / "d", trust=False)
    assert "is a pickle" in error.what and "any code" in error.near
    assert "--set dataset.trust_pickle=true" in error.do
    assert not (tmp_path / "ran").exists()
    failure(tmp_path / "d")
    assert (tmp_path / "ran").exists()


def test_the_number_of_classes_of_config_json(tmp_path, parts):
    fill(tmp_path, *parts)
    about = {"num_clients": 3, "num_classes": 10, "partition": "dir"}
    (tmp_path / "config.json").write_text(json.dumps(about))
    _, images = decode(tmp_path)
    assert images.num_classes == 10 and images.note == ""
    assert images.y[:5].tolist() == parts[0][0]["y"].tolist()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"num_classes": 2}', "config.json says 2 classes, labels go up to 2"),
        ("{}", "names no num_classes"),
        ("[1]", "names no num_classes"),
        ("not json", "names no num_classes"),
        ('{"num_classes": 3, "num_clients": 20}', "says 20 clients, there are 3"),
    ],
)
def test_a_config_json_that_does_not_fit_is_noted(tmp_path, text, note):
    fill(tmp_path, [client(9), client(9), client(9)], [client(1), client(1), client(1)])
    (tmp_path / "config.json").write_text(text)
    _, images = decode(tmp_path)
    assert images.num_classes == 3 and note in images.note


def test_labels_with_gaps(tmp_path):
    fill(tmp_path, [client(9, (2, 7)), client(9, (5, 7))], [client(2, (7,)), client(2, (7,))])
    _, images = decode(tmp_path)
    assert images.classes == ["2", "5", "7"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("train", "1", None), "train has no 1.npz"),
        (("test", "2", None), "test has no 2.npz"),
        (("train", "2", "3"), "train has no 2.npz"),
        (("test", "0", "00"), "test has no 0.npz"),
        (("train", "0", "first"), "train has no 0.npz"),
    ],
)
def test_clients_are_numbered_without_gaps(tmp_path, parts, change, what):
    fill(tmp_path, *parts)
    part, old, new = change
    if new is None:
        (tmp_path / part / f"{old}.npz").unlink()
    else:
        (tmp_path / part / f"{old}.npz").rename(tmp_path / part / f"{new}.npz")
    error = failure(tmp_path)
    assert what in error.what and "0…2 without gaps" in error.do
    if new:
        assert f"{new}.npz" in error.near


def test_a_wrong_folder(tmp_path, parts):
    assert "no files in" in failure(tmp_path / "none").near
    fill(tmp_path, *parts)
    error = failure(tmp_path / "train")
    assert "ID.npz" in error.what and "0.npz" in error.near and "--dataset pfllib:DIR" in error.do


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"x": np.zeros((2, 1, 4, 4), np.float32)}, "not a dict with x and y"),
        ([1, 2], "not a dict with x and y"),
        ({"x": np.zeros((2, 1, 5, 5), np.float32), "y": [0, 1]}, "images are 1×5×5"),
        ({"x": np.zeros((2, 1, 4, 4), np.uint8), "y": [0, 1]}, "images are 1×4×4 uint8"),
        ({"x": np.zeros((2, 99), np.float32), "y": [0, 1]}, "images are 99"),
        ({"x": np.zeros((2, 1, 4, 4), np.float32), "y": [0]}, "2 samples, but labels"),
        ({"x": np.zeros((2, 1, 4, 4), np.float32), "y": [0, -1]}, "negative label"),
        ({"x": np.zeros((2, 1, 4, 4), np.float32), "y": [0.5, 1]}, "not integers"),
        ({"x": np.full((2, 1, 4, 4), np.nan, np.float32), "y": [0, 1]}, "NaN"),
    ],
)
def test_bad_content_names_the_file(tmp_path, parts, content, words):
    fill(tmp_path, *parts)
    save(tmp_path / "train" / "1.npz", np.array(content, dtype=object))
    error = failure(tmp_path)
    assert words in error.what and str(tmp_path / "train" / "1.npz") in error.what


def test_damaged_files(tmp_path, parts):
    fill(tmp_path, *parts)
    path = tmp_path / "test" / "2.npz"
    whole = path.read_bytes()
    np.savez(path, x=np.zeros(3))
    assert "has no x and y" in failure(tmp_path).what
    for broken in (b"", whole[: len(whole) // 2], b"text"):
        path.write_bytes(broken)
        error = failure(tmp_path)
        assert f"{path} cannot be read" in error.what and error.do


def test_plain_arrays_need_no_trust(tmp_path):
    for part, sizes in (("train", (5, 4)), ("test", (2, 2))):
        (tmp_path / part).mkdir()
        for i, n in enumerate(sizes):
            x = rng.normal(size=(n, 3, 16)).astype(np.float32)
            np.savez(tmp_path / part / f"{i}.npz", x=x, y=np.arange(n) % 2)
    config = PFLlib.Config(path=str(tmp_path), kind="series")
    data = PFLlib().decode(config=config, data_dir=tmp_path)
    assert data.sample.kind == "series" and data.x.shape == (13, 3, 16)
    assert [(len(train), len(test)) for train, test in data.split] == [(5, 2), (4, 2)]
    other = PFLlib.Config(path=str(tmp_path))
    keys = {PFLlib().cache_key(config=c, data_dir=tmp_path) for c in (config, other)}
    assert len(keys) == 2


def texts(n, length=6):
    """Return pairs of ids, padded with 0, and length, as the AG News generator stores them."""
    pairs = []
    for size in rng.integers(1, length + 1, n):
        ids = [*rng.integers(1, 30, size), *[0] * (length - size)]
        pairs.append(([int(i) for i in ids], int(size)))
    return {"x": np.array(pairs, dtype=object), "y": rng.integers(0, 4, n)}


def test_texts_with_their_lengths(tmp_path):
    train, test = [texts(5), texts(4)], [texts(2), {"x": np.array([]), "y": np.array([])}]
    train[0]["x"][0] = [[7, 8, 9, 9, 9, 9], 2]  # ids after the length are ignored
    fill(tmp_path, train, test)
    _, data = decode(tmp_path)
    assert data.sample.kind == "tokens" and data.padding == 0 and data.x.shape == (11, 6)
    assert data.x[0].tolist() == [7, 8, 0, 0, 0, 0]
    assert data.x[1].tolist() == train[0]["x"][1, 0]
    assert data.vocabulary == int(data.x.max()) + 1
    assert [(len(a), len(b)) for a, b in data.split] == [(5, 2), (4, 0)]
    config = PFLlib.Config(path=str(tmp_path), trust_pickle=True, vocabulary=99, padding=98)
    other = PFLlib().decode(config=config, data_dir=tmp_path)
    assert other.vocabulary == 99 and other.x[0].tolist() == [7, 8, 98, 98, 98, 98]


def test_texts_of_different_lengths_are_filled_up(tmp_path):
    short = {"x": np.array([([3, 4], 2), ([5], 1)], dtype=object), "y": np.array([0, 1])}
    fill(tmp_path, [texts(3), short], [texts(2), texts(2)])
    _, data = decode(tmp_path)
    assert data.x[data.split[1][0]].tolist() == [[3, 4, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "pair",
    [([1, 2], 3), ([1, 2], "2"), ("12", 2), (None, 0), ([0.5, 1.0], 2), ([[1], [2]], 2)],
)
def test_texts_that_are_none(tmp_path, pair):
    bad = texts(3)
    bad["x"][1, 0], bad["x"][1, 1] = pair
    fill(tmp_path, [texts(3), bad], [texts(2), texts(2)])
    assert f"{tmp_path / 'train' / '1.npz'}: x holds pairs" in failure(tmp_path).what


@pytest.mark.parametrize("shape", [(9, 1, 128), (9, 3, 256)])
@pytest.mark.parametrize("kind", [None, "series"])
def test_sensor_series(tmp_path, shape, kind):
    def some(n):
        return {"x": rng.normal(size=(n, *shape)), "y": np.arange(n) % 2}

    train, test = [some(3), some(4)], [some(2), some(1)]
    fill(tmp_path, train, test)
    config = PFLlib.Config(path=str(tmp_path), trust_pickle=True, kind=kind)
    data = PFLlib().decode(config=config, data_dir=tmp_path)
    assert data.sample.kind == "series" and data.x.shape[1:] == (shape[0] * shape[1], shape[2])
    rows = data.split[1][0]
    expected = train[1]["x"].reshape(4, -1, shape[2]).astype(np.float32)
    assert np.array_equal(data.x[rows].numpy(), expected)

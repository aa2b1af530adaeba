"""Tests of data in LEAF's JSON layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl_plugins.datasets.leaf import LEAF, LETTERS

rng = np.random.default_rng(0)
PIXELS = rng.integers(0, 256, (40, 784))


def write(path, users):
    """Write {user: (x, y)} as LEAF does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    path.write_text(json.dumps({"users": [*users], "num_samples": sizes, "user_data": data}))


def writer(rows, labels=(10, 35, 61)):
    return (PIXELS[rows] / 255).tolist(), [labels[row % len(labels)] for row in rows]


def femnist(root, train=("f0", "f1"), test=("f0", "f1")):
    for part, users, start in (("train", train, 0), ("test", test, 20)):
        write(root / part / "a.json", {u: writer(range(start, start + 6)) for u in users[:1]})
        write(root / part / "b.json", {u: writer(range(start + 6, start + 12)) for u in users[1:]})
    return root


def decode(root, **options):
    return LEAF().decode(config=LEAF.Config(path=str(root), **options), data_dir=root)


def failure(root, **options):
    with pytest.raises(pf.UsageError) as error:
        decode(root, **options)
    assert error.value.do
    return error.value


def test_femnist(tmp_path):
    data = decode(femnist(tmp_path))
    assert data.x.dtype == torch.uint8 and data.x.shape == (24, 1, 28, 28)
    rows = [*range(12), *range(20, 32)]
    assert np.array_equal(data.x.flatten(1).numpy(), PIXELS[rows])
    assert data.num_train == 12 and len(data.classes) == 62
    assert [data.classes[y] for y in data.y[:3]] == ["A", "Z", "z"]
    assert data.columns["client"].tolist() == ["f0"] * 6 + ["f1"] * 6 + ["f0"] * 6 + ["f1"] * 6


def test_each_writer_is_a_client_with_its_own_test_samples(tmp_path):
    given = {"method": "local", "models": "cnn4", "batch_size": 2, "data_dir": str(tmp_path / "d")}
    root = femnist(tmp_path / "femnist" / "data").parent
    plan = Plan.make({**given, "dataset": f"leaf:{root}"})
    split = plan.split(0)
    assert plan.settings.partition == "column:client" and split.num_clients == 2
    assert split.train(1).sort().values.tolist() == [*range(6, 12)]
    assert split.test(1).sort().values.tolist() == [*range(18, 24)]


def test_writers_of_the_test_part_alone_are_unseen(tmp_path):
    given = {"method": "local", "models": "cnn4", "batch_size": 2, "data_dir": str(tmp_path / "d")}
    given["dataset"] = f"leaf:{femnist(tmp_path / 'by-user', test=('f2', 'f3'))}"
    with pytest.raises(pf.UsageError, match="no test sample of f0, f1") as error:
        Plan.make(given).split(0)
    assert "partition.test=unseen" in error.value.do
    given["options"] = {"partition": {"test": "unseen"}}
    with pytest.raises(pf.UsageError, match="no training samples: f2, f3") as error:
        Plan.make(given).split(0)
    assert "--unseen 2" in error.value.do
    split = Plan.make({**given, "unseen": 2}).split(0)
    assert split.untrained == (2, 3) and split.train_sizes.tolist() == [4, 4, 0, 0]
    assert [len(split.test(client)) for client in range(4)] == [2, 2, 6, 6]


def test_without_a_test_part(tmp_path):
    write(tmp_path / "all_data" / "a.json", {"f0": writer(range(8)), "f1": writer(range(8, 16))})
    data = decode(tmp_path)
    assert data.num_train == len(data.y) == 16


def test_shakespeare(tmp_path):
    lines = {"ROMEO": (["But, soft!\n"], ["w"]), "JULIET": (["O Romeo é}."], ["R"])}
    write(tmp_path / "train" / "a.json", lines)
    write(tmp_path / "test" / "a.json", lines)
    data = decode(tmp_path)
    assert len(LETTERS) == 80 and data.vocabulary == 81 and data.padding is None
    assert [data.classes[y] for y in data.y] == ["w", "R", "w", "R"]
    known = [[LETTERS.find(c) for c in text] for text in ("But, soft!\n", "O Romeo é}.")]
    known[1][8] = 80  # é is none of LEAF's characters
    assert data.x.tolist() == known * 2


def test_tweets(tmp_path):
    texts = ["good day day", "bad day", "good bad zzz"]
    tweets = [["1", "Mon", "NO_QUERY", "someone", text, "0"] for text in texts]
    write(tmp_path / "train" / "a.json", {"u": (tweets, ["0", "4", "4"])})
    data = decode(tmp_path, length=4)
    assert data.classes == ["0", "4"] and data.y.tolist() == [0, 1, 1]
    assert data.preparation.words.words == ("day", "bad", "good")
    assert data.x.tolist() == [[4, 2, 2, 0], [3, 2, 0, 0], [4, 3, 1, 0]]


def test_numbers_that_are_not_pixels(tmp_path):
    x = rng.normal(size=(6, 60)).tolist()
    write(tmp_path / "train" / "a.json", {"f_0": (x, [0, 1, 2, 0, 1, 2])})
    assert str(decode(tmp_path).sample).startswith("rows of 60")
    x = rng.normal(size=(6, 784)).tolist()  # as FedProx' MNIST: normalised
    users = {"f_0": writer(range(2), labels=(0, 1)), "f_1": (x, [0, 1, 2, 0, 1, 2])}
    write(tmp_path / "train" / "a.json", users)
    data = decode(tmp_path)
    assert data.x.dtype == torch.float32
    assert np.allclose(data.x[:2].flatten(1), PIXELS[:2] / 255)


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"u": ([[0.0] * 784], [0, 1])}, "user 'u' has 1 samples, but 2 labels"),
        ({"u": (["1.jpg", "2.jpg"], [0, 1])}, "x holds names of images"),
        ({"u": ([[1, 2], [3]], [0, 1])}, "neither texts nor lists of numbers of one length"),
        ({"u": ([[1, 2]], [0]), "v": ([[1, 2, 3]], [1])}, "samples of the shapes [2] and [3]"),
        ({"u": ([[1, 2]], [0]), "v": (["word"], [1])}, "some users have texts"),
        ({"u": (["abc", "de"], ["a", "b"])}, "texts of 3 and 2 characters"),
        ({"u": (["abc", "dea"], ["a", "ß"])}, "the label 'ß' is not one of LEAF's 80"),
        ({"u": (["a b", "c d"], ["no", "yes"])}, "no word occurs twice"),
        ({"u": ([], [])}, "holds no training samples"),
    ],
)
def test_samples_that_do_not_fit(tmp_path, users, words):
    write(tmp_path / "train" / "a.json", users)
    assert words in failure(tmp_path).what


def test_files_that_are_not_of_leaf(tmp_path):
    assert "no folder" in failure(tmp_path / "none").what
    (tmp_path / "femnist").mkdir()
    error = failure(tmp_path)
    assert "train/*.json" in error.what and "holds: femnist" in error.near
    file = tmp_path / "train" / "a.json"
    file.parent.mkdir()
    file.write_text('{"users": [\n')
    assert "invalid JSON (line 2)" in failure(tmp_path).what
    file.write_text('{"images": []}')
    assert "has no user_data" in failure(tmp_path).what
    file.write_text('{"user_data": {"u": [1]}}')
    assert "user 'u' has no lists x and y" in failure(tmp_path).what

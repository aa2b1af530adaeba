"""Tests of data sets from .npz files, and of every check on arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from npz_files import read_npz

import protofl as pf
from protofl.backends import Plan
from protofl_plugins.datasets.npz import Npz

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (6, 5, 7), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(folder, **arrays):
    path = folder / "my.npz"
    np.savez_compressed(path, **arrays)
    return path


def read(folder, **arrays):
    return read_npz(save(folder, **arrays))


def failure(folder, **arrays):
    with pytest.raises(pf.UsageError) as error:
        read(folder, **arrays)
    assert str(folder / "my.npz") in error.value.what
    return error.value


def test_without_a_test_part(tmp_path):
    images = read(tmp_path, x_train=X, y_train=Y)
    assert np.array_equal(images.x[:, 0].numpy(), X) and images.x.shape == (6, 1, 5, 7)
    assert images.y.tolist() == Y.tolist() and images.y.dtype == torch.int64
    assert (images.num_train, images.classes, images.note) == (6, ["0", "1", "2"], "")


def test_with_a_test_part_and_names(tmp_path):
    images = read(
        tmp_path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], classes=["a", "b", "c", "d"]
    )
    assert len(images.y) == 8 and images.num_train == 6
    assert np.array_equal(images.x[6:, 0].numpy(), X[:2])
    assert images.classes == ["a", "b", "c", "d"]


def test_an_empty_test_part_is_none(tmp_path):
    images = read(tmp_path, x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0].astype(float))
    assert images.num_train == len(images.y) == 6


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 8, 9), (4, 1, 8, 9)),
        ((4, 8, 9, 3), (4, 3, 8, 9)),
        ((4, 8, 9, 1), (4, 1, 8, 9)),
        ((4, 3, 8, 9), (4, 3, 8, 9)),
        ((4, 1, 8, 9), (4, 1, 8, 9)),
        ((4, 6, 8, 9), (4, 6, 8, 9)),
        ((4, 3, 8, 3), (4, 3, 8, 3)),
        ((4, 1, 1, 1), (4, 1, 1, 1)),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_layouts(tmp_path, shape, expected, parts):
    x = rng.integers(0, 256, shape, dtype=np.uint8)
    if len(shape) == 3:
        same = x[:, None]
    else:
        same = x if shape == expected else x.transpose(0, 3, 1, 2)
    more = {"x_test": x[:2], "y_test": [0, 1]} if parts == 2 else {}
    images = read(tmp_path, x_train=x, y_train=[0, 1, 0, 1], **more)
    assert images.x.shape[1:] == expected[1:] and images.x.is_contiguous()
    assert np.array_equal(images.x[:4].numpy(), same)
    if parts == 2:
        assert np.array_equal(images.x[4:].numpy(), same[:2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_used_as_they_are(tmp_path, dtype):
    x = rng.normal(size=(4, 3, 6, 6)).astype(dtype)
    images = read(tmp_path, x_train=x, y_train=[0, 1, 1, 0])
    assert images.x.dtype == torch.float32 and images.note == ""
    assert np.array_equal(images.x.numpy(), x.astype(np.float32))


def test_floats_that_look_like_pixels_are_noted(tmp_path):
    images = read(tmp_path, x_train=X.astype(np.float32), y_train=Y)
    assert "not normalised" in images.note and "uint8" in images.note


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("part", ["x_train", "x_test"])
def test_floats_that_are_not_finite(tmp_path, bad, part):
    arrays = {
        "x_train": rng.normal(size=(6, 5, 7)),
        "x_test": rng.normal(size=(6, 5, 7)),
    }
    arrays[part][4, 2, 2] = bad
    error = failure(tmp_path, y_train=Y, y_test=Y, **arrays)
    assert "row 4" in error.what and part in error.what and "NaN" in error.what


def test_labels_with_gaps_keep_their_values_as_names(tmp_path):
    images = read(tmp_path, x_train=X, y_train=[5, 1, 2, 5, 1, 2], x_test=X[:2], y_test=[[2], [5]])
    assert images.y.tolist() == [2, 0, 1, 2, 0, 1, 1, 2]
    assert images.classes == ["1", "2", "5"] and images.note == ""


def test_a_class_only_in_the_test_part_is_noted(tmp_path):
    images = read(tmp_path, x_train=X, y_train=Y, x_test=X[:1], y_test=[7])
    assert images.note == "only in the test part: class 7"


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_labels_of_any_integer_type_and_as_a_column(tmp_path, dtype):
    images = read(tmp_path, x_train=X, y_train=Y.astype(dtype)[:, None])
    assert images.y.tolist() == Y.tolist() and images.y.dtype == torch.int64


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y.astype(float), "not integers"),
        (Y.astype(str), "not integers"),
        (Y - 1, "negative label -1 at row 0"),
        (Y[:5], "6 samples, but labels of the shape (5,)"),
        (np.eye(6, dtype=int), "labels of the shape (6, 6)"),
        (0 * Y, "only one class (0)"),
    ],
)
def test_bad_labels(tmp_path, y, words):
    error = failure(tmp_path, x_train=X, y_train=y)
    assert words in error.what and error.do


def test_labels_beyond_the_names(tmp_path):
    error = failure(tmp_path, x_train=X, y_train=Y, classes=["a", "b"])
    assert "label 2 at row 2, but there are 2 classes" in error.what


@pytest.mark.parametrize(
    "x",
    [
        X.reshape(6, -1),
        np.zeros((6, 32, 32, 4), np.uint8),
        np.zeros((6, 2, 2, 2, 2), np.uint8),
        np.zeros((6, 0, 4, 4), np.uint8),
    ],
)
def test_bad_shapes(tmp_path, x):
    error = failure(tmp_path, x_train=x, y_train=Y)
    assert "images of the shape 6×" in error.what and "N×H×W×C" in error.near and error.do


@pytest.mark.parametrize("dtype", [np.int64, bool, "U3"])
def test_bad_types(tmp_path, dtype):
    error = failure(tmp_path, x_train=X.astype(dtype), y_train=Y)
    assert "images are" in error.what and "uint8" in error.near


@pytest.mark.parametrize("other", [X[:, :4], X.astype(np.float32) / 255])
def test_parts_that_differ(tmp_path, other):
    error = failure(tmp_path, x_train=X, y_train=Y, x_test=other, y_test=Y)
    assert "x_test" in error.what and "x_train" in error.near


@pytest.mark.parametrize(
    ("arrays", "missing"),
    [
        ({"images": X, "labels": Y}, "no x_train and no y_train"),
        ({"x_train": X, "labels": Y}, "no y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "no y_test"),
    ],
)
def test_missing_keys(tmp_path, arrays, missing):
    error = failure(tmp_path, **arrays)
    assert missing in error.what and "x_train" in error.do
    assert error.near == f"it holds: {', '.join(sorted(arrays))}"


def test_no_images(tmp_path):
    assert "no samples" in failure(tmp_path, x_train=X[:0], y_train=Y[:0]).what
    assert "no samples" in failure(tmp_path, x_train=np.uint8(3), y_train=Y).what


def test_names_of_a_wrong_shape(tmp_path):
    assert "classes has the shape" in failure(tmp_path, x_train=X, y_train=Y, classes="abc").what


def test_pickles_are_never_read(tmp_path):
    objects = np.array([{"run": "code"}] * 6, dtype=object)
    for key in ("x_train", "y_train", "classes"):
        error = failure(tmp_path, **{"x_train": X, "y_train": Y, key: objects})
        assert "pickled objects" in error.what and "uint8" in error.do


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "npy", "pickle"])
def test_damaged_files(tmp_path, damage):
    import pickle

    path = save(tmp_path, x_train=rng.integers(0, 256, (99, 9, 9), dtype=np.uint8), y_train=Y)
    content = path.read_bytes()
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, X)
    else:
        middle = len(content) // 2
        broken = {
            "empty": b"",
            "text": b"x_train,y_train\n",
            "cut": content[:middle],
            "flipped": content[:middle]
            + bytes(b ^ 255 for b in content[middle:][:200])
            + content[middle + 200 :],
            "pickle": pickle.dumps({"x_train": X}),
        }
        path.write_bytes(broken[damage])
    with pytest.raises(pf.UsageError) as error:
        read_npz(path)
    assert str(path) in error.value.what and error.value.do


def test_no_file(tmp_path):
    with pytest.raises(pf.UsageError, match="no file"):
        read_npz(tmp_path / "none.npz")
    with pytest.raises(pf.UsageError, match="no file"):
        Npz().cache_key(config=Npz.Config(path=str(tmp_path / "none.npz")), data_dir=tmp_path)
    with pytest.raises(pf.UsageError, match="no file"):
        read_npz(tmp_path)


def test_read_only_arrays_give_no_warning():
    frozen = X.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.datasets.dataset_from_arrays([(frozen, Y, "here")])


def test_a_number_of_classes():
    images = pf.datasets.dataset_from_arrays([(X, Y, "here")], classes=5)
    assert images.classes == ["0", "1", "2", "3", "4"]


def test_the_plugin(tmp_path):
    path = save(tmp_path, x_train=X, y_train=Y)
    config = Npz.Config(path=str(path))
    key = Npz().cache_key(config=config, data_dir=tmp_path)
    assert key.startswith("npz-my-")
    assert np.array_equal(Npz().decode(config=config, data_dir=tmp_path).x[:, 0].numpy(), X)
    save(tmp_path, x_train=X[:3], y_train=Y[:3])
    assert Npz().cache_key(config=config, data_dir=tmp_path) != key
    assert Npz.argument == "path"


def test_floats_that_may_be_images_or_series_are_what_the_group_takes(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3, 64)).astype(np.float32), np.arange(40) % 4
    given = {"method": "local", "dataset": f"npz:{tmp_path / 'a.npz'}", "data_dir": tmp_path}
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y)
    plan = Plan.make({**given, "models": "cnn1d", "clients": 2})
    assert str(plan.data.sample) == "series 3×64"
    assert plan.settings.options["dataset"]["kind"] == "series"  # recorded: a resume needs it
    assert any("read as series 3×64, because cnn1d takes series" in note for note in plan.notes)
    plan = Plan.make({**given, "models": "cnn4", "clients": 2})
    assert str(plan.data.sample) == "images 1×3×64"
    assert plan.settings.options["dataset"]["kind"] is None
    asked = {**given, "models": "cnn1d", "options": {"dataset": {"kind": "image"}}}
    with pytest.raises(pf.UsageError, match="cnn1d takes series, and the data are images"):
        Plan.make(asked)
    with pytest.raises(pf.UsageError, match=r"takes (tables|rows)"):
        Plan.make({**given, "models": "mlp"})


SUBJECTS = {
    "numbers": [7, 3, 7, 3, 7, 3],
    "strings": ["b", "a", "b", "a", "b", "a"],
    "floats": [1.5, 0.0, 1.5, 0.0, 1.5, 0.0],
}


def by(folder, by="user", **given):
    path = save(folder, x_train=X, y_train=Y, **given.pop("arrays"))
    options = {"dataset": {"by": by}}
    given = {"batch_size": 2, "models": "cnn4", **given, "options": options}
    return Plan.make(
        {"method": "local", "dataset": f"npz:{path}", "data_dir": str(folder / "data"), **given}
    )


@pytest.mark.parametrize("values", SUBJECTS.values(), ids=SUBJECTS)
def test_by_makes_each_value_a_client(tmp_path, values):
    for given in ({}, {"partition": "column:user"}):
        plan = by(tmp_path, arrays={"user": values}, **given)
        assert plan.settings.partition == "column:user" and plan.settings.clients == 2
        split = plan.split(0)
        rows = [torch.cat([split.train(c), split.test(c)]).sort()[0].tolist() for c in (0, 1)]
        assert rows == [[1, 3, 5], [0, 2, 4]]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("usr", [1, 1, 2, 2, 3, 3], "has no column 'usr'"),
        ("user", [1, 1, 2, 2, np.nan, np.nan], "no client in 2 of 6 samples, the first in row 4"),
        ("user", ["a", "a", "b", "", "b", "a"], "no client in 1 of 6 samples, the first in row 3"),
        ("user", [1, 1, 2, 2, 2, 9], "one sample only of 9"),
        ("user", [1, 2, 3, 4, 5, 6], "one sample only of 1, 2, 3, 4, 5, 6"),
    ],
)
def test_by_an_array_that_does_not_fit(tmp_path, name, values, words):
    with pytest.raises(pf.UsageError) as error:
        by(tmp_path, name, arrays={"user": values}).split(0)
    assert words in error.value.what and f"column {name!r}" in error.value.what and error.value.do
    if name == "usr":
        assert "columns: user; did you mean user?" in error.value.near


def test_by_and_another_partitioner(tmp_path):
    with pytest.raises(pf.UsageError, match=r"--partition iid and dataset\.by=user both divide"):
        by(tmp_path, arrays={"user": SUBJECTS["numbers"]}, partition="iid")


def medmnist(parts=("train", "val", "test"), sizes=(6, 3, 2), shape=(5, 7, 3), labels=(1,)):
    """Arrays as MedMNIST's files hold them."""
    return {
        f"{part}_{noun}": array
        for part, n in zip(parts, sizes, strict=False)
        for noun, array in (
            ("images", rng.integers(0, 256, (n, *shape), dtype=np.uint8)),
            ("labels", (np.arange(n).reshape(n, *labels) % 3).astype(np.uint8)),
        )
    }


@pytest.mark.parametrize("labels", [(1,), ()], ids=["labels N×1", "labels N"])
def test_names_of_medmnist(tmp_path, labels):
    arrays = medmnist(labels=labels)
    images = read(tmp_path, **arrays)
    assert images.x.shape == (8, 3, 5, 7) and images.num_train == 6
    assert np.array_equal(images.x[:6].numpy(), arrays["train_images"].transpose(0, 3, 1, 2))
    assert images.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert "the validation part, 3 samples, is left out" in images.note
    own = {"x_train": X, "y_train": Y, "x_val": X[:2], "y_val": Y[:2]}
    assert "the validation part is the test part" in read(tmp_path, **own).note


@pytest.mark.parametrize(
    ("validation", "train", "total"), [("out", 6, 8), ("train", 9, 11), ("test", 6, 11)]
)
def test_where_the_validation_part_goes(tmp_path, validation, train, total):
    arrays = medmnist()
    path = save(tmp_path, **arrays)
    data = read_npz(path, validation=validation)
    assert (data.num_train, len(data.y)) == (train, total)
    names = {"out": ("train", "test"), "train": ("train", "val", "test")}
    order = names.get(validation, ("train", "val", "test"))
    expected = np.concatenate([arrays[f"{part}_images"] for part in order])
    assert np.array_equal(data.x.numpy(), expected.transpose(0, 3, 1, 2))
    assert "left out" in data.note if validation == "out" else not data.note


def test_faults_in_files_of_medmnist(tmp_path):
    arrays = medmnist()
    arrays.pop("val_labels")
    assert "has no y_val" in failure(tmp_path, **arrays).what
    arrays = medmnist() | {"train_labels": np.zeros((6, 1), np.float32)}
    assert "(train_images, train_labels): labels are float32" in failure(tmp_path, **arrays).what
    assert "images of the shape" in failure(tmp_path, **medmnist(shape=(4, 4, 4, 4))).what

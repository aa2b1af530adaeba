"""Tests of arrays, tensors and torch data sets in place of a data set's name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import protofl as pf
from protofl_plugins.datasets.arrays import ArrayData


class Pairs(Dataset):
    """A data set that creates its pairs on access."""

    classes = ("no", "yes")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return torch.from_numpy(self.x[row]), int(self.y[row])


def decoded(given, **options):
    return ArrayData.of(given).decoded(options)


def forms(x, y):
    """Return the same eighty training and twenty test rows in all accepted forms."""
    first, last = (x[:80], y[:80]), (x[80:], y[80:])
    tensors = [torch.from_numpy(a) for a in (*first, *last)]
    return {
        "arrays": (*first, *last),
        "tensors": tuple(tensors),
        "a gradient": (tensors[0].requires_grad_(), *tensors[1:]),
        "lists": [a.tolist() for a in (*first, *last)],
        "pairs": (first, last),
        "mapping": dict(zip(("x_train", "y_train", "x_test", "y_test"), tensors, strict=True)),
        "tensor sets": (TensorDataset(*tensors[:2]), TensorDataset(*tensors[2:])),
        "subsets": (Subset(Pairs(x, y), range(80)), Subset(Pairs(x, y), range(80, 100))),
        "decoded": pf.datasets.dataset_from_arrays([(*first, "a"), (*last, "b")], 80),
    }


@pytest.mark.parametrize("form", forms(np.zeros((100, 1), np.float32), np.arange(100) % 2))
def test_one_data_set_in_many_forms(table, form):
    wanted = decoded(forms(*table)["arrays"])
    found = decoded(forms(*table)[form])
    assert found.x.dtype == torch.float32 and found.num_train == 80
    assert torch.equal(found.y, wanted.y)
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-6, atol=1e-6)


def test_a_data_set_without_a_test_part_names_its_classes(table):
    found = decoded(Pairs(*table))
    assert (found.num_train, found.classes) == (100, ["no", "yes"])
    assert decoded({"x_train": table[0], "y_train": table[1], "classes": ("a", "b")}).classes == [
        "a",
        "b",
    ]


def test_options_say_what_a_sample_is(table):
    x, y = table
    assert decoded((x, y)).sample.kind == "table"
    assert decoded((x, y), kind="series").x.shape == (100, 1, 4)
    assert abs(float(decoded((x, y), standardise=True).x.mean())) < 1e-5
    images = np.zeros((10, 5, 5, 3), np.uint8)
    assert decoded((images, np.arange(10) % 2)).x.shape == (10, 3, 5, 5)


def test_pixels_of_pictures(tmp_path):
    """Data sets may return PIL images, as torchvision's do."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    pictures = [(image.fromarray(p), row % 2) for row, p in enumerate(pixels)]

    class Pictures(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, row):
            return pictures[row]

    found = decoded(Pictures())
    assert torch.equal(found.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))


X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])


class Stream(IterableDataset):
    def __iter__(self):
        yield from ()


class Uneven(Pairs):
    def __getitem__(self, row):
        return np.zeros(3 + row), 0


class Single(Pairs):
    def __getitem__(self, row):
        return self.x[row]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "dataset: int is not a data set"),
        ((X,), "dataset: 1 value\npossible: (x_train, y_train)"),
        ((X, Y, X), "dataset: 3 values"),
        ({"x": X, "y": Y}, "dataset: a mapping of x, y\nit has x_train, y_train"),
        ((X, Y[:3]), "x_train, y_train: 4 samples, but labels of the shape (3,)"),
        ((X, Y / 2), "x_train, y_train: labels are float64, not integers"),
        ((X, Y - 1), "negative label -1 at row 0"),
        ((X, Y, X[:, :2], Y), "x_test, y_test: tables are 2 float32"),
        ((X.astype("U3"), Y), "x_train, y_train: tables are <U3"),
        ((np.where(X == 0, np.nan, X), Y), "the sample in row 0 holds NaN"),
        (([[1, 2], [3]], [0, 1]), "x_train cannot be converted to an array"),
        ((torch.zeros(2, 2).to_sparse(), [0, 1]), "x_train cannot be converted to an array"),
        ((X, Y * 0), "only one class (0)"),
        (
            {"x_train": X, "y_train": Y + 1, "classes": ["a", "b"]},
            "label 2 at row 1, but there are 2",
        ),
        (Stream(), "the training part is Stream, which has no length"),
        (Uneven(X, Y), "sample 1 of the training part has the shape [4]"),
        (Single(X, Y), "row 0 of the training part is ndarray, not a pair (x, y)"),
        ((TensorDataset(torch.zeros(0, 2), torch.zeros(0)),), "the training part: no images"),
        (
            pf.datasets.Dataset(torch.zeros(2, 3), torch.tensor([0, 5]), 2, ["a", "b"]),
            "the Dataset does not fit together: labels leave 0…1",
        ),
        (
            pf.datasets.Dataset(np.zeros((2, 3), np.float32), torch.tensor([0, 1]), 2, ["a", "b"]),
            "x is ndarray and no tensor: torch.as_tensor(x)",
        ),
    ],
)
def test_what_is_no_data_set(given, words):
    with pytest.raises(pf.UsageError) as caught:
        decoded(given)
    assert words in str(caught.value)


def test_a_decoded_data_set_takes_no_options(table):
    data = pf.datasets.dataset_from_arrays([(*table, "mine")])
    with pytest.raises(pf.UsageError, match=r"dataset\.kind is for arrays"):
        decoded(data, kind="series")


# --- in runs --------------------------------------------------------------------------------------


def test_a_run_records_what_it_was_given(run, table, tmp_path, same):
    result = run("local")
    config = json.loads((result.folder / "config.json").read_text())
    name, digest = config["dataset"].split(":")
    assert name == "arrays" and len(digest) == 16
    assert (tmp_path / f"data/arrays-{digest}.safetensors").is_file()
    same(result, run("local", "tensors", dataset=tuple(map(torch.from_numpy, table))))
    # The cache has the data, so the run can be repeated without the program.
    given = {"config": result.folder / "config.json", "backend": "local", "progress": False}
    again = pf.run(**given, out=tmp_path / "again")
    same(result, again)


@pytest.mark.slow
def test_other_arrays_have_another_name(run, table):
    x, y = table
    one, two = run("local", "one"), run("local", "two", dataset=(x + 1, y))
    named = run("local", "three", dataset={"x_train": x, "y_train": y, "classes": ["no", "yes"]})
    names = {
        json.loads((r.folder / "config.json").read_text())["dataset"] for r in (one, two, named)
    }
    assert len(names) == 3
    series = run("local", "four", set={"dataset.kind": "series"}, models="cnn1d")
    assert json.loads((series.folder / "config.json").read_text())["data"]["shape"] == [1, 4]


def stop(event):
    if isinstance(event, pf.events.RoundDone):
        raise KeyboardInterrupt


def test_a_run_goes_on_with_its_arrays(run, table, quick, tmp_path, same):
    whole = run("local", "whole", rounds=3)
    with pytest.raises(KeyboardInterrupt):
        run("local", rounds=3, progress=stop)
    out = {"out": tmp_path / "run", "resume": True, "progress": False, "backend": "local"}
    x, y = table
    with pytest.raises(pf.UsageError, match=r"--dataset arrays:\w+ differs from the run's arrays"):
        pf.run(dataset=(x + 1, y), **out)
    with pytest.raises(pf.UsageError, match="are not in") as caught:
        pf.run(data_dir=tmp_path / "elsewhere", **out)
    assert "dataset=" in caught.value.do
    same(pf.run(dataset=table, **out), whole)


@pytest.mark.slow
def test_workers_map_the_arrays(run, same):
    same(run("fedproto", "here"), run("fedproto", "there", backend="process", workers=2))

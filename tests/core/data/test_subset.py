"""Tests of class-balanced subsets: `protofl.data.subset`, and `--subset` of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.data.partition import make_split
from protofl.data.subset import class_balanced
from protofl.system.options.table import build
from protofl.testing import toy as toyfed


def labels(*sizes, seed=0):
    y = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(y)


def counts_of(y, wanted, seed=0):
    rows = class_balanced(y, wanted, np.random.default_rng(seed))
    assert len(np.unique(rows)) == len(rows) and rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()
    return np.bincount(y[rows], minlength=int(y.max()) + 1)


@pytest.mark.parametrize(("share", "each"), [(1 / 20, 30), (1 / 50, 12), (1 / 200, 3)])
def test_fedktl_table_9(share, each):
    y = labels(*[600] * 100)
    assert (counts_of(y, share) == each).all()


def test_fedpkd_figure_1():
    assert (counts_of(labels(*[5000] * 10), 10_000) == 1000).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("sizes", "wanted"), [((40, 7, 90, 0, 3), 60), ((40, 7, 90, 0, 3), 0.5), ((9, 9, 9), 20)]
)
def test_as_even_as_the_classes_allow(sizes, wanted, seed):
    taken = counts_of(labels(*sizes), wanted, seed)
    count = wanted if wanted > 1 else round(wanted * sum(sizes))
    # Slow version: take one sample of each class in turn, while any are left.
    level, slow = 0, np.zeros(len(sizes), dtype=int)
    while (following := np.minimum(sizes, level + 1)).sum() <= count:
        level, slow = level + 1, following
    assert taken.sum() == count
    assert set((taken - slow).tolist()) <= {0, 1}
    assert (taken <= np.array(sizes)).all()


def test_what_is_left_over_goes_to_classes_at_random():
    y = labels(*[50] * 10)
    larger = {tuple(np.flatnonzero(counts_of(y, 53, seed) == 6)) for seed in range(8)}
    assert len(larger) > 4 and all(len(three) == 3 for three in larger)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (200, "a subset of 200 samples is more than there are: 100"),
        (0.03, "a subset of 3 of 100 samples leaves out some of 10 classes"),
        (20.5, "a subset of 20.5 samples"),
    ],
)
def test_refusals(wanted, words):
    with pytest.raises(pf.UsageError) as error:
        class_balanced(labels(*[10] * 10), wanted, np.random.default_rng(0))
    assert words in str(error.value) and error.value.do


def images(num_train=None):
    y = torch.from_numpy(labels(*[100] * 5))
    names = [str(c) for c in range(5)]
    x = torch.zeros(500, 1, 2, 2, dtype=torch.uint8)
    return pf.datasets.Dataset(x, y, 500 if num_train is None else num_train, names)


def even(labels, num_classes, num_clients, min_samples, generator, notes, **_):
    return np.array_split(np.arange(len(labels)), num_clients)


def split(data, seed=0, **options):
    return make_split(data, lambda **given: even(**given), 4, 5, seed, **options)


def test_clients_get_the_part_alone_and_a_note_says_so():
    data = images()
    found = split(data, subset=0.2)
    assert torch.bincount(data.y[found.rows]).tolist() == [20] * 5
    assert found.notes == ["subset: 100 of 500 samples, 20 of each class"]
    assert not split(data).notes


def test_the_part_depends_on_the_seed_alone():
    data = images()
    first, again, other = (split(data, seed, subset=100) for seed in (3, 3, 4))
    assert first.hash == again.hash != other.hash
    assert sorted(first.rows.tolist()) != sorted(other.rows.tolist())


def test_public_and_test_samples_are_held_out_before():
    data = images(num_train=400)
    whole, part = split(data, public=50), split(data, public=50, subset=0.2)
    assert torch.equal(whole.public, part.public)
    assert torch.equal(whole.global_test, part.global_test)
    assert len(part.rows) == 70
    assert not {*part.rows.tolist()} & {*part.public.tolist(), *part.global_test.tolist()}


def test_data_that_come_split_are_refused():
    data = toyfed.make_images([[6, 6], [6, 6]])
    with pytest.raises(pf.UsageError, match="these come already split"):
        make_split(data, even, None, 5, 0, subset=0.5)


@pytest.mark.parametrize(
    ("text", "value"), [("1/20", 0.05), ("0.05", 0.05), ("10000", 10_000), (0.5, 0.5), ("1", 1)]
)
def test_what_the_option_takes(text, value):
    assert build({"method": "local", "models": "cnn4", "subset": text}).subset == value


@pytest.mark.parametrize("text", ["a third", "1/0", "0", "-1/2"])
def test_what_it_refuses(text):
    with pytest.raises(pf.UsageError, match=r"--subset .* is not possible"):
        build({"method": "local", "models": "cnn4", "subset": text})


def test_a_run_records_it(tmp_path):
    options = {"models": "htcnn8", "clients": 2, "rounds": 1, "local_epochs": 1}
    pf.run("local", subset="1/10", backend="local", out=tmp_path / "r", **options)
    assert json.loads((tmp_path / "r/config.json").read_text())["subset"] == 0.1
    record = json.loads((tmp_path / "r/partition.json").read_text())
    total = np.array(record["train_counts"]).sum(0) + np.array(record["test_counts"]).sum(0)
    assert total.sum() == 180 and total.tolist() == [18] * 10
    assert "subset: 180 of 1,797 samples, 18 of each class" in record["notes"]

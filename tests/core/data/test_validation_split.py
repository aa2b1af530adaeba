"""Tests of the selection of validation samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.data.split import Split, partition_record
from protofl.data.subset import with_validation


def split_of(counts):
    """Return a split with `counts` training samples per client and class, and two test samples."""
    rows, sizes, labels = [], [], []
    for client in counts:
        own = np.repeat(np.arange(len(client)), client)
        labels += [*np.random.default_rng(len(rows)).permutation(own), 0, 0]
        rows += range(len(rows), len(rows) + len(own) + 2)
        sizes += [len(own), 2]
    order = np.random.default_rng(1).permutation(len(labels))  # rows differ from positions
    y = torch.empty(len(labels), dtype=torch.int64)
    y[torch.from_numpy(order)] = torch.tensor(labels)
    offsets = torch.tensor([0, *np.cumsum(sizes)])
    return Split(torch.from_numpy(order[rows]), offsets), y


COUNTS = [[40, 20, 0], [7, 1, 1], [1, 1, 1], [0, 2, 0], [300, 3, 97]]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_each_client_keeps_a_sample_of_each_class_and_the_rest_is_stratified(share):
    split, y = split_of(COUNTS)
    found = with_validation(split, y, share, seed=3)
    for client, counts in enumerate(COUNTS):
        before, train = split.train(client).tolist(), found.train(client).tolist()
        held = found.held_out(client).tolist()
        assert torch.equal(found.test(client), split.test(client))
        assert sorted(train + held) == sorted(before) and len({*train, *held}) == len(before)
        assert train == [row for row in before if row not in held]
        counts, free = np.array(counts), np.maximum(np.array(counts) - 1, 0)
        wanted = min(max(1, int(share * counts.sum() + 0.5)), int(free.sum()))
        assert len(held) == wanted
        own = np.bincount(y[held].numpy(), minlength=3)
        part = wanted * free / max(free.sum(), 1)
        assert (np.floor(part) <= own).all() and (own <= np.ceil(part)).all()
        left = np.bincount(y[train].numpy(), minlength=3)
        assert ((left > 0) == (counts > 0)).all()


def test_what_is_held_out_depends_on_the_seed_and_is_uniform():
    split, y = split_of([[12, 0], [30, 30]])
    one, again, other = (with_validation(split, y, 0.25, seed) for seed in (0, 0, 1))
    assert one.hash == again.hash != other.hash
    assert split.hash not in (one.hash, other.hash)
    drawn = torch.zeros(len(y))
    for seed in range(400):
        drawn[with_validation(split, y, 0.25, seed).held_out(0)] += 1
    shares = drawn[split.train(0)] / 400
    assert (
        shares.sum() == pytest.approx(3) and (shares - 0.25).abs().max() < 0.09
    )  # four standard deviations


def test_where_nothing_can_be_held_out():
    split, y = split_of([[1, 1], [1, 0]])
    with pytest.raises(pf.UsageError, match=r"--validation 0\.5 holds nothing out"):
        with_validation(split, y, 0.5, 0)


def test_the_record_counts_them_apart():
    split, y = split_of(COUNTS)
    data = pf.datasets.Dataset(
        torch.zeros(len(y), 1, 8, 8, dtype=torch.uint8), y, len(y), ["a", "b", "c"]
    )
    before = partition_record([split], data)
    after = partition_record([with_validation(split, y, 0.2, 0)], data)
    assert before["train_counts"] == COUNTS and "validation_counts" not in before
    sums = np.array(after["train_counts"]) + np.array(after["validation_counts"])
    assert sums.tolist() == COUNTS and after["test_counts"] == before["test_counts"]

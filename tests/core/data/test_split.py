"""Tests of the split: 75/25, public hold-out, data sets' own splits, hash, counts, record."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protofl import UsageError
from protofl.data.guesses import class_guesses, pooled_guess
from protofl.data.partition import make_split, minimum_for
from protofl.data.split import (
    Split,
    majority_guess,
    partition_record,
)
from protofl.datasets import Dataset, dataset_from_arrays
from protofl_workbench.comparing.trials import balanced_guess

GOLDEN_HASH = "5c66e9bdba9137a81e39c5aa664ddf9e4608fb7c09f76b92bf2bf62319c82216"


def images(num_samples=1000, num_train=800, num_classes=10, split=None):
    return Dataset(
        x=torch.zeros(num_samples, 1, 1, 1, dtype=torch.uint8),
        y=torch.arange(num_samples) % num_classes,
        num_train=num_train,
        classes=[f"c{i}" for i in range(num_classes)],
        split=split,
    )


def even(labels, num_classes, num_clients, min_samples, generator, notes, **_):
    """Partition samples evenly at random, in place of a plugin."""
    return np.array_split(generator.permutation(len(labels)), num_clients)


def sized(*sizes):
    """Return a partitioner that makes parts of these sizes."""

    def partition(labels, num_classes, num_clients, min_samples, generator, notes, **_):
        return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    return partition


def clients(split):
    return [(split.train(i), split.test(i)) for i in range(split.num_clients)]


def refusal(*args, **kwargs):
    with pytest.raises(UsageError) as caught:
        make_split(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_pools_both_parts_and_splits_75_25(seed):
    split = make_split(images(), even, 8, 10, seed, partitioner="even")
    assert split.num_clients == 8 and split.partitioner == "even" and not split.notes
    assert split.public is None and split.global_test is None
    assert sorted(split.rows.tolist()) == list(range(1000))
    for train, test in clients(split):
        assert train.dtype == test.dtype == torch.int64
        assert len(train) == (len(train) + len(test)) * 3 // 4


@pytest.mark.parametrize(
    ("size", "train"), [(2, 1), (3, 2), (4, 3), (5, 3), (7, 5), (13, 9), (14, 10), (1000, 750)]
)
def test_sizes_of_the_parts(size, train):
    split = make_split(images(), sized(size), 1, 10, 0)
    assert (len(split.train(0)), len(split.test(0))) == (train, size - train)


@pytest.mark.parametrize(
    ("size", "parts"), [(0.9, [9, 1, 3, 1]), (3, [3, 7, 3, 1]), (1, [1, 9, 1, 3])]
)
def test_other_training_sizes(size, parts):
    split = make_split(images(), sized(10, 4), 2, 10, 0, train_size=size)
    assert [len(part) for pair in clients(split) for part in pair] == parts


def test_a_training_size_that_cannot_be():
    text = refusal(images(), sized(10, 4), 2, 10, 0, train_size=4)
    assert "client 1 no test sample: it has 4 samples" in text and "--train-size 3 or less" in text


def test_shuffled_within_the_client_only():
    split = make_split(images(), sized(500, 500), 2, 10, 0)
    first = torch.cat(clients(split)[0])
    assert first.max() == 499 and sorted(first.tolist()) == list(range(500))
    assert abs(split.test(0).float().mean() - 250) < 50  # 437 without shuffling
    assert not torch.equal(first, first.sort().values)


def test_depends_on_the_seed_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    one = make_split(images(), even, 8, 10, 5)
    np.random.seed(1)
    two = make_split(images(), even, 8, 10, 5)
    assert one.hash == two.hash and torch.equal(one.rows, two.rows)
    assert make_split(images(), even, 8, 10, 6).hash != one.hash


def test_golden_hash():
    """The hash is from this test's first run (NumPy 2.4): versions must not change a split."""
    assert make_split(images(), even, 8, 10, 0).hash == GOLDEN_HASH
    by_hand = Split(torch.tensor([3, 1]), torch.tensor([0, 1, 2]), global_test=torch.tensor([7]))
    data = b"2;" + struct.pack("<2q", 3, 1) + b"3;" + struct.pack("<3q", 0, 1, 2)
    data += b"none;" + b"1;" + struct.pack("<q", 7)
    assert by_hand.hash == hashlib.sha256(data).hexdigest()


def test_hash_sees_every_part():
    rows, offsets = torch.arange(8), torch.tensor([0, 2, 4, 6, 8])
    splits = [
        Split(rows, offsets),
        Split(rows.flip(0), offsets),
        Split(rows, torch.tensor([0, 3, 4, 6, 8])),
        Split(rows, offsets, public=torch.tensor([9])),
        Split(rows, offsets, global_test=torch.tensor([9])),
        Split(rows, offsets, public=torch.tensor([], dtype=torch.int64)),
    ]
    assert len({split.hash for split in splits}) == len(splits)
    assert Split(rows, offsets, partitioner="x", notes=["y"]).hash == splits[0].hash


def test_clients_out_of_range():
    split = make_split(images(), even, 4, 10, 0)
    for bad in (-1, 4):
        with pytest.raises(IndexError):
            split.train(bad)
        with pytest.raises(IndexError):
            split.test(bad)


# Minimum number of samples


@pytest.mark.parametrize(
    ("num_clients", "minimum", "asked"),
    [(8, 14, 14), (8, 2, 2), (8, 86, 86), (71, 14, 14), (72, 14, 6), (200, 14, 2), (500, 14, 2)],
)
def test_least_samples_asked_for(num_clients, minimum, asked):
    seen = []

    def spy(labels, num_classes, num_clients, min_samples, generator, notes, **_):
        seen.append(min_samples)
        return even(labels, num_classes, num_clients, min_samples, generator, notes)

    split = make_split(images(), spy, num_clients, minimum, 0)
    assert seen == [asked]
    lowered = asked < minimum
    assert len(split.notes) == lowered
    if lowered:
        assert f"at least 14 each; asked for at least {asked} samples each" in split.notes[0]
        assert split.notes[0].endswith("; --clients 71 gives each enough")
    make_split(images(), spy, num_clients, minimum, 0, exact=True)  # a user's is not lowered
    assert seen == [asked, minimum]


@pytest.mark.parametrize(
    ("config", "found"),
    [({}, (14, False)), ({"min_samples": None}, (14, False)), ({"min_samples": 22}, (22, True))],
)
def test_the_minimum_is_the_partitioners(config, found):
    minimum = minimum_for(SimpleNamespace(**config))
    assert (minimum["minimum"], minimum["exact"]) == found


def test_partitioners_notes_are_kept():
    def noting(labels, num_classes, num_clients, min_samples, generator, notes, **_):
        notes.append("moved 3 samples")
        return even(labels, num_classes, num_clients, min_samples, generator, notes)

    assert make_split(images(), noting, 4, 10, 0).notes == ["moved 3 samples"]


@pytest.mark.parametrize(("sizes", "client"), [((10, 0, 5), 1), ((10, 5, 1), 2)])
def test_empty_client(sizes, client):
    message = refusal(images(), sized(*sizes), 3, 10, 0)
    assert f"empty client: client {client} of 3 got {sizes[client]}" in message
    assert "fewer clients, a larger beta, or another partitioner" in message


def test_a_client_without_rows_may_be_a_float_array():
    def partition(**_):
        return [np.arange(10), np.array([])]

    assert "empty client: client 1" in refusal(images(), partition, 2, 10, 0)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0, 1, 2], [2, 3]], "gave row 2 to more than one place"),
        ([[0, 1], [2, 1000]], "outside 0…999"),
        ([[0, 1], [-1, 2]], "outside 0…999"),
        ([[0, 1]], "1 parts for 2 clients"),
        ([[0.5, 1.5], [2, 3]], "type float64"),
    ],
)
def test_a_faulty_partitioner_is_named(parts, words):
    def partition(**_):
        return [np.array(part) for part in parts]

    message = refusal(images(), partition, 2, 10, 0, partitioner="mine")
    assert message.startswith("mine ") and words in message


@pytest.mark.parametrize("num_clients", [0, -3, None])
def test_number_of_clients(num_clients):
    assert "at least 1 client" in refusal(images(), even, num_clients, 10, 0)


def test_ten_thousand_clients():
    data = images(60_000, 50_000)
    split = make_split(data, even, 10_000, 10, 0)
    train_counts, _ = split.counts(data.y, 10)
    record = partition_record([split], data)
    assert train_counts.shape == (10_000, 10) and record["hash"] == split.hash


# Public data


def test_public_data_and_the_own_test_part():
    data = images(1000, 800)
    split = make_split(data, even, 8, 10, 0, public=200)
    assert split.global_test.tolist() == list(range(800, 1000))
    assert len(split.public) == 200 and split.public.max() < 800
    everything = torch.cat([split.rows, split.public, split.global_test])
    assert sorted(everything.tolist()) == list(range(1000))
    assert len(split.train(0)) == 56  # ⌊0.75 · 75⌋


def test_public_data_without_own_test_part_holds_a_tenth_out():
    split = make_split(images(1000, 1000), even, 8, 10, 0, public=200)
    assert len(split.global_test) == 100 and len(split.public) == 200
    everything = torch.cat([split.rows, split.public, split.global_test])
    assert sorted(everything.tolist()) == list(range(1000))


def test_public_sets_are_nested_and_leave_the_global_test_set():
    small = make_split(images(1000, 1000), even, 8, 10, 0, public=100)
    large = make_split(images(1000, 1000), even, 8, 10, 0, public=300)
    assert torch.equal(small.global_test, large.global_test)
    assert set(small.public.tolist()) < set(large.public.tolist())


def test_partitioner_sees_the_labels_of_what_is_left():
    data = images(1000, 800)
    seen = []

    def spy(labels, **rest):
        seen.append(labels)
        return even(labels, **rest)

    split = make_split(data, spy, 8, 10, 0, public=200)
    assert sorted(seen[0].tolist()) == sorted(data.y[split.rows].tolist())
    by_class = [np.flatnonzero(seen[0] == c) for c in range(10)]
    pure = make_split(data, lambda **_: by_class, 10, 1, 0, public=200)
    for i in range(10):
        assert (data.y[pure.train(i)] == i).all() and (data.y[pure.test(i)] == i).all()


@pytest.mark.parametrize(
    ("num_train", "public", "largest"), [(800, 785, 784), (1000, 900, 884), (800, 5000, 784)]
)
def test_public_larger_than_there_is(num_train, public, largest):
    message = refusal(images(1000, num_train), even, 8, 10, 0, public=public)
    assert f"cannot hold out {public} public samples" in message
    assert f"--public {largest} or less" in message
    split = make_split(images(1000, num_train), even, 8, 10, 0, public=largest)
    assert len(split.public) == largest


def test_negative_public():
    assert "cannot hold out -1" in refusal(images(), even, 8, 10, 0, public=-1)


# Data sets with their own split


def own():
    return [
        (torch.tensor([4, 2, 0]), torch.tensor([1])),
        (torch.tensor([5]), torch.tensor([3, 6])),
    ]


@pytest.mark.parametrize("num_clients", [2, None])
def test_own_split_is_used_as_it_is(num_clients):
    split = make_split(images(split=own()), sized(), num_clients, 10, 0)
    assert split.num_clients == 2 and split.partitioner == "own"
    for (train, test), (own_train, own_test) in zip(clients(split), own(), strict=True):
        assert torch.equal(train, own_train) and torch.equal(test, own_test)


def test_own_split_with_another_number_of_clients():
    message = refusal(images(split=own()), even, 20, 10, 0)
    assert "split over 2 clients, not 20" in message and "--clients 2" in message


def test_own_split_and_public_data():
    assert "already split" in refusal(images(split=own()), even, 2, 10, 0, public=5)


def test_own_split_with_an_empty_client():
    split = [*own(), (torch.tensor([7]), torch.tensor([], dtype=torch.int64))]
    message = refusal(images(split=split), even, None, 10, 0)
    assert "empty client: client 2 of 3 has no test sample" in message


def test_own_split_of_a_client_with_test_rows_alone():
    nothing = torch.tensor([], dtype=torch.int64)
    split = [(nothing, torch.tensor([7])), *own()]
    result = make_split(images(split=split), even, None, 10, 0)
    assert result.untrained == (0,) and result.test(0).tolist() == [7]
    assert result.first_batch(2, 3).rows.tolist() == own()[0][0][:2].tolist() * 6


# Statistics


def test_counts_against_a_loop():
    data = images(1000, 800, 7)
    split = make_split(data, even, 9, 10, 0, public=100)
    train_counts, test_counts = split.counts(data.y, 7)
    assert train_counts.dtype == test_counts.dtype == torch.int64
    for i, (train, test) in enumerate(clients(split)):
        for c in range(7):
            assert train_counts[i, c] == (data.y[train] == c).sum()
            assert test_counts[i, c] == (data.y[test] == c).sum()


def test_record_is_json():
    data = images(60, 50, 3)
    split = make_split(data, even, 2, 10, 0, public=10, partitioner="even")
    record = json.loads(json.dumps(partition_record([split], data)))
    train_counts, test_counts = split.counts(data.y, 3)
    assert record["train_counts"] == train_counts.tolist()
    assert record["test_counts"] == test_counts.tolist()
    assert record["hash"] == split.hash and record["partitioner"] == "even"
    assert record["classes"] == ["c0", "c1", "c2"] and record["clients"] == 2
    assert record["public_samples"] == 10 and record["global_test_samples"] == 10


def test_the_majority_guess_by_hand():
    train = np.array([[5, 1, 0], [2, 2, 0], [0, 0, 9]])
    test = np.array([[2, 1, 0], [1, 3, 0], [0, 1, 2]])
    # client 0 guesses class 0: 2 of 3; client 1 (a tie) class 0: 1 of 4; client 2 class 2: 2 of 3
    assert class_guesses(train, test).tolist() == [[2, 3], [1, 4], [2, 3]]
    assert pooled_guess(class_guesses(train, test)) == pytest.approx(5 / 10)
    assert pooled_guess(class_guesses(train, test), [1]) == pytest.approx(1 / 4)
    # 3 of 3 samples of class 0 are guessed, 0 of 5 of class 1, 2 of 2 of class 2
    assert balanced_guess(train, test) == pytest.approx(2 / 3)


def test_clients_without_training_samples_guess_nothing():
    train, test = np.array([[0, 0], [1, 3]]), np.array([[9, 0], [1, 1]])
    assert pooled_guess(class_guesses(train, test)) == pytest.approx(1 / 2)
    assert math.isnan(pooled_guess(class_guesses(train[:1], test[:1])))
    assert math.isnan(balanced_guess(train[:1], test[:1]))
    data = dataset_from_arrays(
        [(np.eye(6, dtype=np.float32), np.arange(6.0), "six")], kind="table", task="regression"
    )
    data.split = [(torch.tensor(a), torch.tensor(b)) for a, b in (([], [0, 1]), ([2, 3], [4, 5]))]
    split = make_split(data, None, 2, 1, seed=0)
    numbers, mean = np.array([4.0, 5]), 2.5
    variance = np.array([0.0, 1, 4, 5]).var()
    wanted = 1 - ((numbers - mean) ** 2).mean() / variance
    assert majority_guess(split, data) == pytest.approx(wanted)
    assert math.isnan(majority_guess(split, data, [0]))
    assert math.isnan(pooled_guess([[0, 0], [0, 0]], None)), "0 % would be a figure"


def test_a_first_batch_is_client_0s_for_everybody():
    split = make_split(images(), even, 5, 10, seed=1, public=50)
    few = split.first_batch(6, 3)
    assert few.num_clients == 3
    for client in range(3):
        assert few.train(client).tolist() == split.train(0)[:6].tolist()
        assert few.test(client).tolist() == split.train(0)[:6].tolist()
    assert few.public.tolist() == split.public[:6].tolist()
    assert few.global_test.tolist() == split.global_test[:6].tolist()
    tiny = make_split(images(), sized(4, 996), 2, 1, seed=1).first_batch(10, 2)
    assert tiny.train_sizes.tolist() == [3, 3]

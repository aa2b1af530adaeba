"""From a data set and a partitioner to every client's training and test rows.

Without public data the data set's own training and test parts are pooled, partitioned, and each
client's share is shuffled and split 75/25 (FedTGP, FedKTL, FedSA: "Implementation Details"). With
public data (FedPKD, Sec. V-A) N samples of the training part are held out unlabelled, the data
set's own test part is the global test set, and the rest of the training part is partitioned and
split 75/25. Data that come already split keep their split.

A split depends on the data, the partitioner with its options, and the seed; never on the method.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.subset import class_balanced, in_words
from protofl.errors import UsageError
from protofl.randomness import numpy_stream

Partition = Callable[..., list[np.ndarray]]
"""A partitioner with its options bound: by name all but ``config`` of its hook's arguments."""


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows of a data set each of M clients trains and is tested on.

    Attributes:
        rows: Row numbers [n] int64, client after client, each client's training rows first.
        offsets: Starts [2M+1] int64 in ``rows``: 2i of client i's training, 2i+1 of its test rows.
        public: Unlabelled public rows [N_pub], or None.
        global_test: Rows [N_test] of the server's test set where there are public data, or None.
        partitioner: Name of the partitioner; ``own`` for data that come already split.
        notes: Lines to tell the user of something unusual that was done.
        validation: Validation rows, client after client, which are in no other part; None where
            nothing is held out.
        validation_offsets: Starts [M+1] int64 in ``validation``.
    """

    rows: Tensor
    offsets: Tensor
    public: Tensor | None = None
    global_test: Tensor | None = None
    partitioner: str = ""
    notes: list[str] = field(default_factory=list)
    validation: Tensor | None = None
    validation_offsets: Tensor | None = None

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.offsets) // 2

    @cached_property
    def train_sizes(self) -> Tensor:
        """Numbers of samples [M] that the clients train on."""
        return self.offsets.diff()[::2]

    def train(self, client_id: int) -> Tensor:
        """Rows [n] that client ``client_id`` trains on."""
        return self._piece(2 * client_id)

    def test(self, client_id: int) -> Tensor:
        """Rows [n] that client ``client_id`` is tested on."""
        return self._piece(2 * client_id + 1)

    def held_out(self, client_id: int) -> Tensor | None:
        """Rows [n] on which client ``client_id`` is validated, maybe none; None without any."""
        if self.validation is None or self.validation_offsets is None:
            return None
        start, end = self.validation_offsets[client_id : client_id + 2].tolist()
        return self.validation[start:end]

    def _piece(self, index: int) -> Tensor:
        if not 0 <= index < len(self.offsets) - 1:
            raise IndexError(f"client {index // 2} of {self.num_clients}")
        return self.rows[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def first_batch(self, size: int, num_clients: int) -> Split:
        """A split to try things out on: all clients train and are tested on client 0's first rows.

        Args:
            size: Rows that they have, at most; public and global test rows are as many.
            num_clients: M.
        """
        rows, pieces = self.train(0)[:size], 2 * num_clients
        return replace(
            self,
            rows=rows.repeat(pieces),
            offsets=torch.arange(pieces + 1) * len(rows),
            public=None if self.public is None else self.public[:size],
            global_test=None if self.global_test is None else self.global_test[:size],
            validation=None,
            validation_offsets=None,
        )

    def counts(self, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Numbers of samples of each class in every client's training and test part.

        Args:
            labels: Labels [N] of the whole data set.
            num_classes: C.

        Returns:
            Training counts [M, C] and test counts [M, C], int64.
        """
        piece = torch.repeat_interleave(torch.arange(len(self.offsets) - 1), self.offsets.diff())
        cells = piece * num_classes + labels[self.rows]
        table = torch.bincount(cells, minlength=2 * self.num_clients * num_classes)
        table = table.reshape(self.num_clients, 2, num_classes)
        return table[:, 0].contiguous(), table[:, 1].contiguous()

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) over all rows and offsets; identifies the split in a record."""
        digest = hashlib.sha256()
        parts = [self.rows, self.offsets, self.public, self.global_test]
        if self.validation is not None:
            parts += [self.validation, self.validation_offsets]
        for tensor in parts:
            if tensor is None:
                digest.update(b"none;")
            else:
                digest.update(f"{len(tensor)};".encode())
                digest.update(tensor.numpy().astype("<i8").tobytes())
        return digest.hexdigest()


def number_of_clients(data: Dataset, given: int | None, usual: int) -> int:
    """M: as given, else as the data come split, else as usual."""
    if given is None and data.split is not None:
        return len(data.split)
    return usual if given is None else given


def kept_split(data: Dataset) -> list[str]:
    """What to tell whoever names a partitioner of data that come already split."""
    if data.split is None:
        return []
    return ["the data come already split over clients: that split is kept"]


def make_split(
    data: Dataset,
    partition: Partition,
    num_clients: int | None,
    batch_size: int,
    seed: int,
    public: int = 0,
    train_share: float = 0.75,
    partitioner: str = "",
    subset: float = 1,
) -> Split:
    """Split a data set over clients.

    The partitioner is asked for enough samples per client to fill one training batch after the
    split, ⌈batch_size / train_share⌉. Where the data are too few to give that to everyone it is
    half the mean share instead, and at least 2, so that runs with many clients work; a note says
    so.

    Args:
        data: The data; where they come already split, that split is used.
        partition: The partitioner with its options bound. It is given the labels of the samples
            to split and returns positions among these.
        num_clients: M; None only for data that come already split.
        batch_size: B.
        seed: The effective seed; the split depends on no other randomness.
        public: Samples of the training part to hold out as unlabelled public data.
        train_share: Share of a client's samples that it trains on.
        partitioner: The partitioner's name, for the record.
        subset: What the clients get of the samples that are left, class-balanced: a share up to 1,
            or above 1 their number.

    Raises:
        UsageError: The data can't be split this way.
    """
    if data.split is not None:
        return _own_split(data, num_clients, public, subset)
    if num_clients is None or num_clients < 1:
        raise UsageError(f"a split needs at least 1 client, not {num_clients}", do="give --clients")

    public_rows, test_rows, base = _hold_out(data, num_clients, seed, public)
    notes: list[str] = []
    if subset != 1:
        total, chance = len(base), numpy_stream(seed, "split", "subset")
        base = base[class_balanced(data.y.numpy()[base], subset, chance)]
        notes.append(in_words(data.y.numpy()[base], total))
    least = math.ceil(batch_size / train_share)
    if num_clients * least > len(base):
        lowered = max(2, len(base) // num_clients // 2)
        if num_clients * lowered <= len(base):
            notes.append(
                f"{len(base)} samples are too few to fill a batch of {batch_size} for each of "
                f"{num_clients} clients; asked for at least {lowered} samples each, not {least}"
            )
        least = lowered
    shares = partition(
        labels=data.y.numpy()[base],
        num_classes=data.num_classes,
        num_clients=num_clients,
        min_samples=least,
        generator=numpy_stream(seed, "split", "partition"),
        notes=notes,
    )
    rows, sizes = _checked(shares, len(base), num_clients, partitioner or "the partitioner")

    # Shuffle within every client at once: sort by client, then by a random key.
    client = np.repeat(np.arange(num_clients), sizes)
    keys = numpy_stream(seed, "split", "shuffle").random(len(rows))
    rows = base[rows[np.lexsort((keys, client))]]
    train_sizes = np.clip(np.floor(sizes * train_share + 1e-9).astype(np.int64), 1, sizes - 1)
    pieces = np.stack([train_sizes, sizes - train_sizes], axis=1).reshape(-1)
    return Split(
        rows=torch.from_numpy(rows),
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(pieces)])),
        public=public_rows,
        global_test=test_rows,
        partitioner=partitioner,
        notes=notes,
    )


def _hold_out(
    data: Dataset, num_clients: int, seed: int, public: int
) -> tuple[Tensor | None, Tensor | None, np.ndarray]:
    """Public rows, global test rows, and the rows that are left to partition.

    One permutation serves both, the test rows first: so the global test set does not depend on
    the number of public samples, and a larger public set contains the smaller.
    """
    if not public:
        return None, None, np.arange(len(data.y), dtype=np.int64)
    has_test = data.num_train < len(data.y)
    tenth = 0 if has_test else max(1, data.num_train // 10)
    largest = data.num_train - tenth - 2 * num_clients
    if not 0 < public <= largest:
        raise UsageError(
            f"can't hold out {public} public samples",
            f"the training part has {data.num_train} samples"
            + (f", of which {tenth} are the global test set" if tenth else "")
            + f", and {num_clients} clients need at least 2 each",
            f"use --public with at most {largest}" if largest > 0 else "use fewer clients",
        )
    order = numpy_stream(seed, "split", "public").permutation(data.num_train).astype(np.int64)
    if has_test:
        test = np.arange(data.num_train, len(data.y), dtype=np.int64)
    else:
        test = np.sort(order[:tenth])
    held = np.sort(order[tenth : tenth + public])
    base = np.sort(order[tenth + public :])
    return torch.from_numpy(held), torch.from_numpy(test), base


def _checked(
    shares: list[np.ndarray], num_samples: int, num_clients: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """All shares' positions one after another, and their sizes, if they are a partition."""
    do = "this is an error in the partitioner, not in your options"
    if len(shares) != num_clients:
        raise UsageError(f"{name} returned {len(shares)} parts for {num_clients} clients", do=do)
    sizes = np.array([len(share) for share in shares], dtype=np.int64)
    for client in np.flatnonzero(sizes < 2):
        raise UsageError(
            f"empty client: client {client} of {num_clients} got {sizes[client]} of "
            f"{num_samples} samples from {name}",
            "a client needs at least 1 training and 1 test sample",
            "use fewer clients, a larger beta, or another partitioner",
        )
    rows = np.concatenate([np.asarray(share).reshape(-1) for share in shares])
    if not np.issubdtype(rows.dtype, np.integer):
        raise UsageError(f"{name} returned rows of type {rows.dtype}", "rows are int64", do)
    rows = rows.astype(np.int64)
    if rows.min() < 0 or rows.max() >= num_samples:
        raise UsageError(f"{name} returned rows outside 0…{num_samples - 1}", do=do)
    twice = np.flatnonzero(np.bincount(rows, minlength=num_samples) > 1)
    if twice.size:
        raise UsageError(f"{name} gave row {twice[0]} to more than one place", do=do)
    return rows, sizes


def _own_split(data: Dataset, num_clients: int | None, public: int, subset: float) -> Split:
    """The split that the data came with."""
    own = data.split or []
    if num_clients not in (None, len(own)):
        raise UsageError(
            f"these data come split over {len(own)} clients, not {num_clients}",
            do=f"use --clients {len(own)}, or leave it out",
        )
    if public:
        raise UsageError(
            f"can't hold out {public} public samples: these data come already split",
            do="give public samples of their own: --public npz:PATH",
        )
    if subset != 1:
        raise UsageError(
            "--subset takes a part before the data are split, and these come already split",
            do="leave it out",
        )
    pieces = [part for pair in own for part in pair]
    sizes = torch.tensor([len(part) for part in pieces], dtype=torch.int64)
    for index in torch.nonzero(sizes == 0).flatten().tolist():
        raise UsageError(
            f"empty client: client {index // 2} of {len(own)} has no "
            f"{('training', 'test')[index % 2]} sample in the data's own split",
            do="repair the data set's files",
        )
    offsets = torch.zeros(len(pieces) + 1, dtype=torch.int64)
    offsets[1:] = sizes.cumsum(0)
    rows = torch.cat([part.long() for part in pieces]) if pieces else offsets[:0]
    return Split(rows=rows, offsets=offsets, partitioner="own")


def partition_record(splits: Sequence[Split], data: Dataset) -> dict[str, Any]:
    """What ``partition.json`` holds of the splits of some trials: the first's, others in it."""
    first, *others = ({"trial": n, **_record(split, data)} for n, split in enumerate(splits))
    return {**first, "trials": others}


def _record(split: Split, data: Dataset) -> dict[str, Any]:
    """Counts, clients × classes, and the hash of a split."""
    train_counts, test_counts = split.counts(data.y, data.num_classes)
    return {
        "partitioner": split.partitioner,
        "clients": split.num_clients,
        "classes": list(data.classes),
        "train_counts": train_counts.tolist(),
        "test_counts": test_counts.tolist(),
        **({} if split.validation is None else {"validation_counts": _validation(split, data)}),
        "public_samples": 0 if split.public is None else len(split.public),
        "global_test_samples": 0 if split.global_test is None else len(split.global_test),
        "notes": list(split.notes),
        "hash": split.hash,
    }


def _validation(split: Split, data: Dataset) -> list[list[int]]:
    """Validation samples of each client and class."""
    held = [split.held_out(client) for client in range(split.num_clients)]
    labels = [data.y[rows] for rows in held if rows is not None]
    return [torch.bincount(y, minlength=data.num_classes).tolist() for y in labels]


def majority_correct(train_counts: Tensor, test_counts: Tensor) -> float:
    """Accuracy of always guessing a client's commonest training class, pooled over clients.

    Args:
        train_counts: Training samples [M, C] of each client and class.
        test_counts: Test samples [M, C].

    Returns:
        Σ_i test samples of client i's commonest training class (ties: the lowest) / all test
        samples; 0 where there are none.
    """
    guess = train_counts.numpy().argmax(axis=1)  # NumPy promises the first of equals
    tests = test_counts.numpy()
    total = int(tests.sum())
    return int(tests[np.arange(len(guess)), guess].sum()) / total if total else 0.0

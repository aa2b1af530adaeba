"""A split: which rows of a data set every client trains, validates and is tested on; its record.

A split depends on the data, the partitioner with its options, and the seed; never on the method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.guesses import class_guesses, pooled_guess
from protofl.data.tasks import variance_of
from protofl.system.randomness import random_stream

if TYPE_CHECKING:
    from protofl.data.columns import Columns

_BLOCK = 65_536
"""Rows of a column that are copied at once."""

BALANCED = 2_000
"""Samples at most on which `balanced_test` has every client tested."""


@dataclass(frozen=True, eq=False)
class Split:
    """The training and test rows of each of M clients.

    Attributes:
        rows: Row numbers [n] int64, client after client, each client's training rows first.
        offsets: Starts [2M+1] int64 in ``rows``: 2i of client i's training, 2i+1 of its test rows.
        public: Unlabelled public rows [N_pub], or None.
        global_test: Rows [N_test] of the server's test set in a run with public data, or None.
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

    @cached_property
    def test_sizes(self) -> Tensor:
        """Numbers of samples [M] that the clients are tested on."""
        return self.offsets.diff()[1::2]

    @cached_property
    def untrained(self) -> tuple[int, ...]:
        """Clients with test rows and without training rows, ascending."""
        sizes = self.offsets.diff()
        untrained = (sizes[::2] == 0) & (sizes[1::2] > 0)
        return tuple(untrained.nonzero().flatten().tolist())

    def train(self, client_id: int) -> Tensor:
        """Rows [n] that client ``client_id`` trains on."""
        return self._piece(2 * client_id)

    def test(self, client_id: int) -> Tensor:
        """Rows [n] that client ``client_id`` is tested on."""
        return self._piece(2 * client_id + 1)

    def held_out(self, client_id: int) -> Tensor | None:
        """Return validation rows [n] of client ``client_id``; None for a run without validation."""
        if self.validation is None or self.validation_offsets is None:
            return None
        start, end = self.validation_offsets[client_id : client_id + 2].tolist()
        return self.validation[start:end]

    def _piece(self, index: int) -> Tensor:
        if not 0 <= index < len(self.offsets) - 1:
            raise IndexError(f"client {index // 2} of {self.num_clients}")
        return self.rows[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def first_batch(self, size: int, num_clients: int) -> Split:
        """Return a small split for tests: all clients get some training rows, also to test on.

        They are the first rows of the first client that has training rows.

        Args:
            size: Rows that they have, at most; public and global test rows are as many.
            num_clients: M.
        """
        first = next((c for c, n in enumerate(self.train_sizes.tolist()) if n), 0)
        rows, pieces = self.train(first)[:size], 2 * num_clients
        return replace(
            self,
            rows=rows.repeat(pieces),
            offsets=torch.arange(pieces + 1) * len(rows),
            public=None if self.public is None else self.public[:size],
            global_test=None if self.global_test is None else self.global_test[:size],
            validation=None,
            validation_offsets=None,
        )

    def with_rows(self, train: Sequence[Tensor], test: Sequence[Tensor]) -> Split:
        """Return this split with other clients: their training and test rows, without others."""
        pieces = [piece for pair in zip(train, test, strict=True) for piece in pair]
        sizes = torch.tensor([0, *map(len, pieces)])
        return replace(
            self,
            rows=torch.cat(pieces),
            offsets=sizes.cumsum(0),
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
        cells = piece.mul_(num_classes).add_(labels[self.rows])  # in place: rows may be many
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
                digest.update(np.ascontiguousarray(tensor.numpy(), "<i8").data)
        return digest.hexdigest()


def partition_record(splits: Sequence[Split], data: Dataset) -> dict[str, Any]:
    """Return the content of ``partition.json``: the first trial's split, with the others in it."""
    first, *others = ({"trial": n, **_record(split, data)} for n, split in enumerate(splits))
    return {**first, "trials": others}


def _record(split: Split, data: Dataset) -> dict[str, Any]:
    """Counts, clients × classes, and the hash of a split."""
    return {
        "partitioner": split.partitioner,
        "clients": split.num_clients,
        "classes": list(data.classes),
        **_names(split, data),
        **_tables(split, data),
        **({} if split.validation is None else {"validation_counts": _validation(split, data)}),
        "public_samples": 0 if split.public is None else len(split.public),
        "global_test_samples": 0 if split.global_test is None else len(split.global_test),
        "notes": list(split.notes),
        "hash": split.hash,
    }


def _names(split: Split, data: Dataset) -> dict[str, list[str]]:
    """Names of the clients, if the data give them names."""
    names = [] if data.y.is_meta else client_names(split, data.columns)
    return {"client_names": names} if names else {}


def _tables(split: Split, data: Dataset) -> dict[str, Any]:
    """Counts, clients × classes; none if they are not known here, then guesses instead."""
    if data.y.is_meta:
        return {"train_counts": [], "test_counts": [], "majority": [*map(list, data.guesses)]}
    train, test = split.counts(data.y, data.num_classes)
    tables: dict[str, Any] = {"train_counts": train.tolist(), "test_counts": test.tolist()}
    if not data.task.has_classes:  # the classes only divide samples, so no guess follows from them
        tables["majority"] = task_guesses(split, data)
    return tables


def tested_variance(split: Split, data: Dataset) -> float:
    """Return the variance of the test numbers of all clients, to which R² refers.

    It is in the scaled unit of `Dataset.labels`; 1 for other tasks than regression.
    """
    if data.task.name != "regression":
        return 1.0
    rows = torch.cat([split.test(client) for client in range(split.num_clients)])
    return variance_of(data.labels[rows])


def task_guesses(split: Split, data: Dataset) -> list[list[float]]:
    """Return per client the points of `Task.guess` and the number of its test samples.

    The number is 0 for clients without training samples.
    """
    variance, result = tested_variance(split, data), []
    for client in range(split.num_clients):
        train, test = (data.labels[rows] for rows in (split.train(client), split.test(client)))
        points = data.task.guess(train, test, variance, data.vocabulary)
        result.append([points, len(test) if len(train) else 0])
    return result


def majority_guess(split: Split, data: Dataset, clients: Sequence[int] | None = None) -> float:
    """Return the accuracy of always guessing each client's most frequent class.

    Of another task, the score of always guessing its commonest labels, or its mean number. Clients
    without training samples do not count, because no guess follows from them.

    Args:
        split: The split.
        data: The data.
        clients: The clients; None for all.

    Returns:
        The accuracy or score; NaN if none of the clients has training samples.
    """
    if data.y.is_meta:
        return pooled_guess(data.guesses, clients)
    if not data.task.has_classes:
        return pooled_guess(task_guesses(split, data), clients)
    return pooled_guess(class_guesses(*split.counts(data.y, data.num_classes)).tolist(), clients)


def _validation(split: Split, data: Dataset) -> list[list[int]]:
    """Validation samples of each client and class."""
    held = [split.held_out(client) for client in range(split.num_clients)]
    labels = [data.y[rows] for rows in held if rows is not None]
    return [torch.bincount(y, minlength=data.num_classes).tolist() for y in labels]


@lru_cache(maxsize=4)
def balanced_test(split: Split, labels: Tensor, seed: int) -> Tensor:
    """Return rows of all clients' test parts, equally many of each class, in the data's order.

    Args:
        split: The split.
        labels: Labels [N] of the whole data set.
        seed: Draws which ones.

    Returns:
        Rows [n·C′] of the C′ classes that test parts have; n is the smallest class's number, or
        `BALANCED` // C′ if that is less.
    """
    rows = torch.cat([split.test(client) for client in range(split.num_clients)])
    rows = rows[torch.randperm(len(rows), generator=random_stream(seed, "balanced-test"))]
    counts = torch.bincount(labels[rows])
    classes = counts.nonzero().flatten().tolist()
    if not classes:
        return rows
    each = min(int(counts[classes].min()), max(1, BALANCED // len(classes)))
    return torch.cat([rows[labels[rows] == c][:each] for c in classes]).sort().values


def samples_per_class(rows: Tensor, labels: Tensor) -> int:
    """Return the number of samples of each class among rows of `balanced_test`."""
    return int(torch.bincount(labels[rows]).max()) if len(rows) else 0


def client_names(split: Split, columns: Columns) -> list[str]:
    """Return the names that a column of the data gives the clients; empty without such a column.

    A column names the clients if all samples of a client have one value, which no other client has:
    its hospital. The first column of strings counts, otherwise the first one of numbers
    (``subject 3``).
    """
    for name, values in sorted(columns.items(), key=lambda item: item[1].dtype.kind != "U"):
        domains = client_domains(split, values)
        if domains and len({*domains}) == split.num_clients:
            return domains if values.dtype.kind == "U" else [f"{name} {value}" for value in domains]
    return []


def client_domains(split: Split, domains: np.ndarray | None) -> list[str]:
    """Return the domain of each client; nothing unless every client has samples of one alone.

    Args:
        split: The split.
        domains: The domain [N] of each sample of the data set; None for data without.
    """
    if domains is None:
        return []
    clients = range(split.num_clients)
    result = []
    for client in clients:
        rows = torch.cat([split.train(client), split.test(client)])
        if not len(rows):
            return []
        name = domains[rows[0]]
        if any((domains[block.numpy()] != name).any() for block in torch.split(rows, _BLOCK)):
            return []
        result.append(str(name))
    return result

"""Contract of partitioners."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from protofl.data.partition import make_split
from protofl.errors import UsageError
from protofl.hooks.plugin.members import Choice
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, refusal, skip

LEAST = 3
"""Samples that every client is asked to get."""


def labels_of(sizes: list[int]) -> np.ndarray:
    """Labels of classes of these sizes, in a random order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(1).permutation(labels)


class PartitionerContract(Contract):
    """The checks of a partitioner, on labels alone.

    Samples have a column ``client``, which deals them out one by one.

    A case that the partitioner refuses with a `protofl.UsageError` is left out, and said so; not
    all may be refused.

    Attributes:
        sizes: {words: sizes of the classes, clients}: the cases.
    """

    kind = "partitioner"
    sizes: ClassVar[dict[str, tuple[list[int], int]]] = {
        "balanced classes": ([120] * 10, 4),
        "skewed classes": ([20, 40, 80, 160, 320, 640], 5),
        "more clients than samples of a class": ([5, 200, 200, 200], 8),
        "a class without samples": ([90, 0, 90, 90], 3),
        "one client": ([30, 30], 1),
        "as many clients as samples allow": ([30, 30], 60 // LEAST),
    }

    def split(
        self,
        sizes: list[int],
        clients: int,
        seed: int = 0,
        notes: list[str] | None = None,
        *,
        choice: Choice | None = None,
        writable: bool = True,
    ) -> list[np.ndarray]:
        """The partitioner's answer to classes of these sizes; training and test rows joined."""
        labels = labels_of(sizes)
        labels.setflags(write=writable)
        answer = (choice or self.choice()).call(
            "partition",
            labels=labels,
            num_classes=len(sizes),
            class_names=[f"class {c}" for c in range(len(sizes))],
            num_clients=clients,
            min_samples=LEAST,
            generator=np.random.default_rng(seed),
            notes=[] if notes is None else notes,
            num_train=len(labels),
            columns={"client": np.arange(len(labels)) % clients},
        )
        expect(isinstance(answer, list), f"partition returns a {type(answer).__name__}, not a list")
        return [
            np.concatenate(client_rows) if isinstance(client_rows, tuple) else client_rows
            for client_rows in answer
        ]

    def taken(self) -> dict[str, tuple[list[int], int]]:
        """The cases that it does not refuse."""
        result, refused = {}, []
        for case_name, (sizes, clients) in self.sizes.items():
            try:
                self.split(sizes, clients)
            except UsageError as error:
                refused.append(f"{case_name}: refused ({refusal(error)})")
            else:
                result[case_name] = (sizes, clients)
        expect(bool(result), f"it refuses every case: {'; '.join(refused)}")
        self.remarks += refused
        return result

    def test_every_sample_at_most_once(self) -> None:
        """Every client gets row numbers, int64 and within range, and no row goes to two."""
        for case_name, (sizes, clients) in self.taken().items():
            parts, count = self.split(sizes, clients), sum(sizes)
            expect(len(parts) == clients, f"{case_name}: {len(parts)} parts for {clients} clients")
            for client_rows in parts:
                expect(isinstance(client_rows, np.ndarray), f"{case_name}: a part is not an array")
                expect(
                    client_rows.dtype == np.int64 and client_rows.ndim == 1,
                    f"{case_name}: a part is {client_rows.dtype} of {client_rows.ndim} dimensions, "
                    "not int64 of one",
                )
            rows = np.concatenate(parts)
            expect(
                not len(rows) or 0 <= rows.min() <= rows.max() < count,
                f"{case_name}: a row number leaves 0…{count - 1}",
            )
            twice = len(rows) - len(np.unique(rows))
            expect(not twice, f"{case_name}: {twice} rows are given twice")

    def test_no_sample_is_lost(self) -> None:
        """No sample is lost, unless leaves_out says which and why."""
        figure_title = str(getattr(self.cls, "leaves_out", ""))
        lost = {}
        for case_name, (sizes, clients) in self.taken().items():
            missing = sum(sizes) - sum(
                len(client_rows) for client_rows in self.split(sizes, clients)
            )
            if missing:
                lost[case_name] = missing
        if figure_title:
            self.remarks.append(f"it leaves out {figure_title}")
        told = "; ".join(f"{case_name}: {missing} samples" for case_name, missing in lost.items())
        expect(not lost or bool(figure_title), f"no client gets {told}; say so: leaves_out = '…'")

    def test_every_client_gets_enough(self) -> None:
        """Every client gets at least the samples asked for, or a note says who does not."""
        for case_name, (sizes, clients) in self.taken().items():
            notes: list[str] = []
            parts = self.split(sizes, clients, notes=notes)
            fewest = min(len(client_rows) for client_rows in parts)
            expect(
                fewest >= LEAST or bool(notes),
                f"{case_name}: a client gets {fewest} samples, {LEAST} were asked for; add a note",
            )

    def test_seeds(self) -> None:
        """The partitioner draws from its generator only: equal generators give equal splits."""
        cases = self.taken()
        before = np.random.get_state()[1]  # type: ignore[index]
        unlike = False
        for case_name, (sizes, clients) in cases.items():
            first, again, other = (self.split(sizes, clients, seed) for seed in (3, 3, 4))
            expect(same_split(first, again), f"{case_name}: equal generators give other splits")
            unlike |= not same_split(first, other)
        after = np.random.get_state()[1]  # type: ignore[index]
        expect(np.array_equal(before, after), "it draws from NumPy's global generator")
        if not unlike:
            expect(
                bool(getattr(self.cls, "deterministic", False)),
                "every seed gives the same split; where that is meant: deterministic = True",
            )

    def test_labels_are_only_read(self) -> None:
        """The partitioner does not change the labels, and takes them read-only."""
        for case_name, (sizes, clients) in self.taken().items():
            try:
                self.split(sizes, clients, writable=False)
            except ValueError as error:
                raise AssertionError(f"{case_name}: {error}") from error

    def test_refusals(self) -> None:
        """Too few samples are refused with a pf.UsageError that says what to do."""
        try:
            parts = self.split([2, 2], 4)
        except UsageError as error:
            expect(bool(error.do or error.near), f"the refusal says no way out: {error.what}")
        else:
            few = min(len(client_rows) for client_rows in parts)
            skip(f"4 samples for 4 clients are not refused; the smallest part has {few}")

    def test_it_runs(self) -> None:
        """A data set is split with it, and every client has training and test samples."""
        images = toy.make_images([[30] * 6], given_split=False)
        images.columns = {"client": np.arange(len(images.y)) % 3}
        partition = partial(self.choice().call, "partition")
        splits = [
            make_split(images, partition, 3, 5, seed, partitioner=self.label) for seed in (0, 0)
        ]
        expect(splits[0].hash == splits[1].hash, "equal seeds give other splits")
        for client in range(3):
            sizes = len(splits[0].train(client)), len(splits[0].test(client))
            expect(all(sizes), f"client {client} has {sizes[0]} training, {sizes[1]} test samples")

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The partitioner keeps nothing on self."""
        choice = self.choice()
        instance = choice.instance
        for sizes, clients in self.taken().values():
            self.split(sizes, clients, choice=choice)
        expect(not vars(instance), f"self holds {', '.join(vars(instance))} after a split")


def same_split(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    """Return True if two splits are equal."""
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

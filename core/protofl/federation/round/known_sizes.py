"""The sizes of clients' data, as the server knows them, and checks of what clients claim.

A number of samples weights a client in a mean, so a client that claims more samples than it has
would decide for all. Sizes follow from the split. If a client's samples lie on another machine that
does not tell their number, the client's first accepted round counts: later claims may not be
larger, and the first claim may not be far from those of the other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import ceil
from statistics import median
from typing import Any

import torch
from torch import Tensor

from protofl.federation.jobs.jobs import (
    ClientJob,
    Evaluate,
    EvaluateReply,
    Reply,
    Train,
    TrainReply,
)
from protofl.federation.plan.plan import Plan
from protofl.hooks.transport.rules import Fault
from protofl.hooks.wire.payload import on_host

FAR = 100.0
"""Largest ratio of an unknown client's first claim to the median of the others' claims."""

MOST = 10_000_000
"""Samples of a client of unknown size, at most; as many as a node may tell."""

HELD = "held"
"""The key of the numbers of the first round in what the server has learned."""


class KnownSizes:
    """Checks what clients claim of their numbers of samples.

    Args:
        plan: The run.
        trial: The trial.
        learned: What the server has learned; gets the first claims of clients of unknown size,
            as JSON values.
    """

    def __init__(self, plan: Plan, trial: int, learned: dict[str, Any]) -> None:
        self._plan, self._split, self._learned = plan, plan.split(trial), learned
        self._train_sizes: list[int] = self._split.train_sizes.tolist()
        self._test_sizes: list[int] = self._split.test_sizes.tolist()
        self._counts: tuple[Tensor, Tensor] | None = None
        phases = plan.composition.phases(plan.info)
        self._phases = [phase for phase in phases if plan.composition.terms_of(phase)]
        public = self._split.public if plan.public_data is None else plan.public_data.y
        self._public = 0 if public is None else len(public)

    # --- what is known --------------------------------------------------------------------------

    def train(self, client: int) -> int | None:
        """Return the number of a client's training samples; None if it is not known."""
        size = self._train_sizes[client]
        return size or (None if self._plan.data.elsewhere else 0)

    def test(self, client: int) -> int | None:
        """Return the number of a client's test samples; None if it is not known."""
        size = self._test_sizes[client]
        if not size and self._plan.data.elsewhere:
            guesses = self._plan.data.guesses
            return guesses[client][1] or None if guesses else None
        return size

    def seen(self, client: int, when: str) -> int | None:
        """Return the largest number of samples that a client sees in training.

        Args:
            client: The client.
            when: ``before_upload`` or ``after_server``: which phases of the method.
        """
        private_size, total = self.train(client), 0
        for phase in self._phases:
            if phase.when == when:
                if phase.data == "private" and private_size is None:
                    return None
                size = private_size if phase.data == "private" else self._public
                total += ceil(phase.epochs or self._plan.settings.local_epochs) * (size or 0)
        return total

    # --- checks ---------------------------------------------------------------------------------

    def check(self, job: ClientJob, reply: Reply) -> None:
        """Check the numbers of samples in a reply.

        Raises:
            Fault: A number is larger than the client's, or is another number of test samples.
        """
        if self._plan.dry:
            return
        if isinstance(job, Train) and isinstance(reply, TrainReply):
            most = self.seen(job.client, job.when)
            if most is None and job.when == "after_server":
                held = self._learned.setdefault(HELD, {})
                most = held.setdefault(f"{job.client} seen {job.when}", min(reply.samples, MOST))
            elif most is None:
                most = self._first(job.client, f"seen {job.when}")
            self._at_most("samples", reply.samples, most)
        elif isinstance(job, Evaluate) and isinstance(reply, EvaluateReply):
            self._check_scores(job.client, reply)

    def _check_scores(self, client: int, reply: EvaluateReply) -> None:
        """Check the numbers of scored samples: all of each kind are scored, and no others."""
        count = self.test(client)
        if count is None:
            held = self._learned.setdefault(HELD, {})
            count = held.setdefault(f"{client} test", min(reply.count, MOST))
        self._exactly("count", reply.count, count)
        rows, settings = self._split.held_out(client), self._plan.settings
        measured = "train-accuracy" in settings.measure
        self._scored("validation", reply.validation, rows is not None, rows)
        self._scored("train", reply.train, measured, self.train(client))
        self._scored("balanced", reply.balanced, "global-accuracy" in settings.measure, None)

    def _scored(
        self, key: str, pair: tuple[float, int] | None, measured: bool, rows: Tensor | int | None
    ) -> None:
        if (pair is not None) != measured:
            detail = (
                "which the run does not measure" if pair else "of nothing, and the run measures it"
            )
            raise Fault(key, "figures", detail)
        if pair is not None and rows is not None:
            self._exactly(key, pair[1], rows if isinstance(rows, int) else len(rows))

    def first_faults(self, replies: Mapping[int, TrainReply]) -> dict[int, Fault]:
        """Return the faults of first claims of samples seen before the upload; note the others.

        Args:
            replies: {client: reply} of the clients whose uploads are accepted.
        """
        if self._plan.dry:
            return {}
        claims = {client: float(reply.samples) for client, reply in replies.items()}
        return self._compared(
            "seen before_upload", claims, partial(self.seen, when="before_upload")
        )

    def faults(self, uploads: Mapping[int, Mapping[str, Tensor]]) -> dict[int, Fault]:
        """Return the faults of uploads that claim more samples than their clients have.

        The first claims of clients of unknown size are compared with those of all clients; those
        that pass are noted.

        Args:
            uploads: {client: upload}, checked one by one.
        """
        result: dict[int, Fault] = {}
        if self._plan.dry:
            return result
        plugins = [member.plugin for member in self._plan.composition.transforms]
        changed = any(getattr(plugin, "changes_counts", False) for plugin in plugins)
        for key in ("samples",) if changed else ("samples", "counts"):
            sums = {
                c: _sum(on_host(u, key)) for c, u in uploads.items() if key in u and _whole(u[key])
            }
            for client, total in sums.items():
                most, held = self.train(client), self._first(client, key)
                if (
                    key == "counts"
                    and most is not None
                    and self._plan.data.task.name == "multilabel"
                ):
                    most *= self._plan.info.num_classes  # a sample counts for each of its labels
                try:
                    self._at_most(key, total, held if most is None else most)
                    if key == "counts" and most is not None:
                        self._check_counts(client, uploads[client])
                except Fault as fault:
                    result[client] = fault
            claims = {
                client: float(total) for client, total in sums.items() if client not in result
            }
            result |= self._compared(key, claims, self.train)
        return result

    def _compared(
        self, key: str, claims: Mapping[int, float], known: Callable[[int], int | None]
    ) -> dict[int, Fault]:
        """Compare the first claims of clients of unknown size with all; note those that pass."""
        new = [c for c in claims if known(c) is None and self._first(c, key) is None]
        result = {}
        for client in new:
            value = claims[client]
            usual = median([claims[c] for c in claims if c != client] or [value])
            if value > min(FAR * usual, MOST * self._plan.settings.local_epochs):
                detail = f"with {value:.0f} samples; the usual number is {usual:.0f}, and its node "
                result[client] = Fault(key, "counts", detail + 'tells none (tell = "sizes")')
            else:
                self._learned.setdefault(HELD, {})[f"{client} {key}"] = int(value)
        return result

    def _check_counts(self, client: int, upload: Mapping[str, Tensor]) -> None:
        """Compare the counts of classes with those of the split, if labels stay what they are."""
        data = self._plan.data
        rows = next((key for key in ("counts.classes", "classes") if key in upload), None)
        members = self._plan.composition.members.values()
        relabelled = any(hasattr(member.plugin, "train_labels") for member in members)
        relabelled |= bool(self._plan.settings.malicious)
        if data.y.is_meta or rows is None or relabelled:
            return
        if data.task.has_classes:
            if self._counts is None:
                self._counts = self._split.counts(data.y, data.num_classes)
            client_counts = self._counts[0][client]
        else:
            own = data.labels[self._split.train(client)]
            client_counts = data.task.label_counts(own, self._plan.info.num_classes)
        classes, counts = (on_host(upload, key).tolist() for key in (rows, "counts"))
        for label, count in zip(classes, counts, strict=False):
            if count > int(client_counts[label]):
                detail = (
                    f"with {count} samples of class {label}, it has {int(client_counts[label])}"
                )
                raise Fault("counts", "counts", detail)

    @staticmethod
    def _at_most(key: str, count: int, most: int | None) -> None:
        if most is not None and count > most:
            raise Fault(key, "counts", f"with {count} samples, it has at most {most}")

    @staticmethod
    def _exactly(key: str, count: int, known: int | None) -> None:
        if known is not None and count != known:
            raise Fault(key, "figures", f"as {count} samples, it has {known}")

    def _first(self, client: int, key: str) -> int | None:
        """Return the first accepted claim of a client of unknown size; None for none yet."""
        number: int | None = self._learned.get(HELD, {}).get(f"{client} {key}")
        return number


def _whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _sum(tensor: Tensor) -> int:
    numbers: Iterable[int] = tensor.flatten().tolist()
    return sum(numbers)

"""Progress of a stage of a round: mini-batches counted on hosts, and their sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


OnSteps = Callable[[int, int], None]
"""Takes a client and how many mini-batches of its job are done."""


EVERY = 0.25
"""Seconds between two reports of a job, at least."""


class Counter:
    """Counts the mini-batches of a job and reports them now and then.

    A mini-batch counts when the next one is asked for, so nothing waits for a device.

    Args:
        report: Takes the number of mini-batches that are done; None where nobody follows the job,
            and nothing is counted.
    """

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report = report
        self._before = 0
        self._last = time.monotonic()

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Return the mini-batches of a part of the job, which are counted as they are taken.

        A part that is begun again before its end, by an engine that falls back to another, is
        counted anew.
        """
        return batches if self._report is None else self._counted(batches, self._report)

    def _counted(self, batches: Iterator[T], report: Callable[[int], None]) -> Iterator[T]:
        done = self._before
        for batch in batches:
            yield batch
            done += 1
            now = time.monotonic()
            if now - self._last >= EVERY:
                self._last = now
                report(done)
        self._before = done


class Stage:
    """Takes what hosts report of their jobs, and sums it up.

    Args:
        steps: {client: mini-batches that it has to do}.
        costs: {client: cost of one of them, relative to others}.
    """

    def __init__(self, steps: Mapping[int, int], costs: Mapping[int, float]) -> None:
        self._steps, self._costs = steps, costs
        self._reported: dict[int, int] = {}
        self.done, self.steps = 0, sum(steps.values())
        self._work, self._whole = 0.0, sum(n * costs[client] for client, n in steps.items())

    def take(self, client: int, done: int | None = None) -> bool:
        """Note how many mini-batches of a client are done, or all; return True if that changes."""
        most = self._steps.get(client, 0)
        now = most if done is None else min(done, most)
        more = now - self._reported.get(client, 0)
        if not more:
            return False
        self._reported[client] = now
        self.done += more
        self._work += more * self._costs[client]
        return True

    @property
    def share(self) -> float:
        """Share of the work that is done, 0 to 1."""
        return min(1.0, self._work / self._whole) if self._whole else 0.0

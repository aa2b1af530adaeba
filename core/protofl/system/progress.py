"""Progress of a stage of a round: mini-batches counted on hosts, and their sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

OnSteps = Callable[[int, int], None]
"""Takes a client and the number of finished mini-batches of its job."""

EVERY = 0.25
"""Minimum seconds between two reports of a job."""


class Counter:
    """Counts the mini-batches of a job and reports their number at intervals.

    A mini-batch counts when the next one is requested, so nothing waits for a device.

    Args:
        report: Takes the number of finished mini-batches; None to count nothing.
    """

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report = report
        self._before = 0
        self._last = time.monotonic()

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield and count the mini-batches of a part of the job.

        The count of an unfinished part starts again, if an engine falls back to another.
        """
        count = self._before
        for batch in batches:
            yield batch
            count += 1
            if self._report and time.monotonic() - self._last >= EVERY:
                self._last = time.monotonic()
                self._report(count)
        self._before = count


class Stage:
    """Sums the progress reports of hosts.

    Args:
        steps: {client: mini-batches of its job}.
        costs: {client: relative cost of one of its mini-batches}.
    """

    def __init__(self, steps: Mapping[int, int], costs: Mapping[int, float]) -> None:
        self._steps, self._costs = steps, costs
        self._reported: dict[int, int] = {}
        self.done, self.steps = 0, sum(steps.values())
        self._work, self._whole = 0.0, sum(n * costs[client] for client, n in steps.items())

    def take(self, client: int, batches: int | None = None) -> bool:
        """Record finished mini-batches of a client, or all; return True if the number grows."""
        most = self._steps.get(client, 0)
        now = most if batches is None else min(batches, most)
        more = now - self._reported.get(client, 0)
        if not more:
            return False
        self._reported[client] = now
        self.done += more
        self._work += more * self._costs[client]
        return True

    @property
    def share(self) -> float:
        """Share of finished work, 0 to 1."""
        return min(1.0, self._work / self._whole) if self._whole else 0.0

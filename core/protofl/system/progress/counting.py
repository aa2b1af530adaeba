"""Counting mini-batches on a host, while it works on a client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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

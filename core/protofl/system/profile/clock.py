"""Seconds by name: the stages of a job, and the parts of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


class Clock:
    """Seconds of a job by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str, *, less: float = 0.0, took: float | None = None) -> None:
        """Add the time since the last lap to a stage.

        Args:
            stage: The stage.
            less: Seconds that count elsewhere.
            took: Seconds to count instead.
        """
        now = time.perf_counter()
        spent = now - self._last - less if took is None else took
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
        self._last = now


class Sums:
    """Seconds of a profiled run's own work by category and name.

    Args:
        on: False to count nothing.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def span(self, name: str, category: str) -> AbstractContextManager[None]:
        """Count the seconds of a block."""
        return self._count(name, category) if self.on else nullcontext()

    @contextmanager
    def _count(self, name: str, category: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[category][name] += time.perf_counter() - start


OFF = Sums(on=False)
"""The sums of a run that is not profiled."""

"""The clocks of a run and its hosts, and the interface of profiles."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
    """Seconds of a run's own work by category and name."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    @contextmanager
    def span(self, name: str, category: str) -> Iterator[None]:
        """Count the seconds of a block, without those of blocks inside it."""
        seconds = self.seconds[category]
        start, before = time.perf_counter(), sum(seconds.values())
        try:
            yield
        finally:
            inside = sum(seconds.values()) - before
            seconds[name] += time.perf_counter() - start - inside


class Unprofiled:
    """A run that is not profiled: it counts seconds by category alone.

    Attributes:
        on: True if the run is profiled.
        sums: Seconds of the run's own work.
    """

    on = False

    def __init__(self) -> None:
        self.sums = Sums()

    @contextmanager
    def round(self, number: int, *, last: bool) -> Iterator[None]:
        """Time a round."""
        yield

    @contextmanager
    def stage(self, name: str, clients: Sequence[int]) -> Iterator[set[int]]:
        """Time a stage with jobs for workers; yield the clients whose operators are sampled."""
        yield set()

    def take(self, client: int, recorded: str, seconds: Mapping[str, float]) -> None:
        """Add a host's record of a client's job, and the job's seconds by stage."""

    def summary(self) -> dict[str, Any] | None:
        """Return the seconds of the run by kind of work; see docs/how-to/profile-a-run.md."""
        return None

    def write(self, folder: Path) -> None:
        """Write the profile into a folder."""


class UnprofiledHost:
    """A host of a run that is not profiled.

    Attributes:
        on: True if the run is profiled.
        sample: True if operators of this job are recorded.
    """

    on = False
    sample = False

    @contextmanager
    def operators(self, block: str, elsewhere: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Record the seconds of a block, and its operators if this job is a sample.

        Args:
            block: Its name.
            elsewhere: Returns the job's seconds so far that count in another stage; by default 0.
        """
        yield

    @contextmanager
    def steps(self, count: int) -> Iterator[Callable[[str], None]]:
        """Yield the function that an engine calls at the end of each phase of ``count`` steps."""
        yield lambda phase: None

    def job_done(self, start: float) -> str:
        """Return the record of a job since a time of `time.perf_counter`, as JSON."""
        return ""

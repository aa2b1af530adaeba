"""The clock of a job, and what a run and its hosts have in place of a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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


class NoProfile:
    """Takes the times of a run or a host without ``--profile``, and keeps none.

    `protofl.system.profile` has those that keep them.

    Attributes:
        on: True if times are kept.
    """

    on = False

    def span(self, name: str, category: str) -> AbstractContextManager[None]:
        """Count the seconds of a block, without those of blocks inside it."""
        return nullcontext()

    def round(self) -> AbstractContextManager[None]:
        """Time a round."""
        return nullcontext()

    def take(self, recorded: str, seconds: Mapping[str, float]) -> None:
        """Add a host's record of a client's job, and the job's seconds by stage."""

    def summary(self) -> dict[str, Any] | None:
        """Return the seconds of the run by kind of work; None if they are not kept."""
        return None

    def write(self, folder: Path) -> None:
        """Write ``summary.json``, if the run is profiled."""

    def steps(self) -> AbstractContextManager[Callable[[str], None]]:
        """Yield the function that an engine calls at the end of each phase of its steps."""
        return nullcontext(lambda phase: None)

    def job_done(self) -> str:
        """Return the record of a job, as JSON; empty if none is kept."""
        return ""


UNPROFILED = NoProfile()

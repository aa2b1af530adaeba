"""Seconds of a job by stage."""

from __future__ import annotations

import time

from protofl.profile.spans import Spans


class Clock:
    """Seconds by stage.

    Args:
        spans: Takes every stage as a span.
    """

    def __init__(self, spans: Spans) -> None:
        self.seconds: dict[str, float] = {}
        self._spans = spans
        self._last = time.perf_counter()

    def lap(self, stage: str, *, less: float = 0.0, took: float | None = None) -> None:
        """Book the time since the last lap.

        Args:
            stage: The stage for which it is booked.
            less: Seconds of it that are booked elsewhere.
            took: Seconds to book in its place.
        """
        now = time.perf_counter()
        spent = now - self._last - less if took is None else took
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
        if self._spans.on:
            self._spans.add(stage, "stage", round(self._last * 1e9), round(now * 1e9))
        self._last = now

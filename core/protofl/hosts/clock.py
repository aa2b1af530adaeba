"""Seconds of a job by stage."""

from __future__ import annotations

import time

from protofl.profile.spans import Spans


class Clock:
    """Seconds by stage."""

    def __init__(self, spans: Spans) -> None:
        self.seconds: dict[str, float] = {}
        self._spans = spans
        self._last = time.perf_counter()

    def lap(self, stage: str, less: float = 0.0) -> None:
        """Book the time since the last lap; ``less`` of it is booked elsewhere."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last - less
        if self._spans.on:
            self._spans.add(stage, "stage", round(self._last * 1e9), round(now * 1e9))
        self._last = now

    def restart(self, **booked: float) -> None:
        """Leave the time since the last lap out, and book these seconds in its place."""
        for stage, seconds in booked.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        now = time.perf_counter()
        if self._spans.on:
            title = " and ".join(booked)
            self._spans.add(title, "stage", round(self._last * 1e9), round(now * 1e9))
        self._last = now

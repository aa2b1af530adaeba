"""The profile of a host: seconds by training phase, and samples of operators."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from protofl.system.profile.operators import Operators

WARM_UP = 3
"""Steps of a client before those whose operators are recorded."""

SAMPLED = 2
"""Steps of a client whose operators are recorded."""


class HostProfile:
    """What a host records of its jobs; each reply carries what was recorded of its job.

    Args:
        on: True if the run is profiled.
        device: The clients' device.
    """

    def __init__(self, on: bool, device: torch.device) -> None:
        self.on, self.device = on, device
        self.sample = False
        """True if operators of this job are recorded."""
        self._start_anew()

    def _start_anew(self) -> None:
        self._phases: dict[str, float] = defaultdict(float)
        self._steps = 0
        self._operators: dict[str, object] = {}
        self._own: dict[str, float] = defaultdict(float)
        self.sample = False

    @contextmanager
    def operators(self, part: str) -> Iterator[None]:
        """Record the operators of a block, if this job is a sample."""
        if self.sample:
            recorder = self.begin(part)
            yield
            self.end(recorder, part)
        else:
            yield

    @contextmanager
    def steps(self, count: int) -> Iterator[Callable[[str], None]]:
        """Give what an engine calls in its steps, of which there are ``count``; see `Phases`."""
        if not self.on:
            yield lambda phase: None
            return
        laps = Phases(self, count)
        yield laps
        laps.finish()

    def job_done(self, start: float) -> str:
        """Return what was recorded of a job since a time of `time.perf_counter`, as JSON."""
        found = {
            "process": [socket.gethostname(), os.getpid()],
            "seconds": time.perf_counter() - start,
            "phases": self._phases,
            "steps": self._steps,
            "operators": self._operators,
            "profiler": self._own,
        }
        self._start_anew()
        return json.dumps(found)

    # --- from the blocks below ------------------------------------------------------------------

    def has(self, part: str) -> bool:
        """Return True if this job's operators of that part were recorded already."""
        return part in self._operators

    def begin(self, part: str) -> Operators:
        """Start recording operators of a part of the job."""
        start = time.perf_counter()
        recorder = Operators(self.device)
        self._own[part] += time.perf_counter() - start
        return recorder

    def end(self, recorder: Operators, part: str) -> None:
        """Stop recording."""
        start = time.perf_counter()
        self._operators[part] = recorder.stop()
        self._own[part] += time.perf_counter() - start

    def trained(self, seconds: dict[str, float], steps: int) -> None:
        """Add an engine's phases."""
        for phase, value in seconds.items():
            self._phases[phase] += value
        self._steps += steps


class Phases:
    """Counts the seconds of training steps by phase: an engine calls it at the end of each phase.

    A phase ``data`` opens a step. On a GPU phases are timed there, between events in the stream, so
    that nothing waits for the device.
    """

    def __init__(self, profile: HostProfile, steps: int) -> None:
        self._profile = profile
        self._seconds: dict[str, float] = defaultdict(float)
        self._steps = 0
        wanted = profile.sample and not profile.has("train")
        self._first = max(1, min(1 + WARM_UP, steps - SAMPLED + 1)) if wanted else 0
        self._recorder: Operators | None = None
        self._cuda = profile.device.type == "cuda"
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._last = self._resume()

    def __call__(self, phase: str) -> None:
        """Add the time since the last call."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._last
        if self._cuda:
            self._mark(phase)
        self._last = now
        if phase == "data":
            self._steps += 1
            if self._first and self._steps == self._first:
                self._recorder = self._profile.begin("train")
                self._last = self._resume()
            elif self._recorder is not None and self._steps == self._first + SAMPLED:
                self._stop()
                self._last = self._resume()

    def finish(self) -> None:
        """Hand over the seconds."""
        self._stop()
        if self._cuda:
            torch.cuda.synchronize(self._profile.device)
            self._seconds = defaultdict(float)
            for (_, before), (phase, after) in zip(self._marks, self._marks[1:], strict=False):
                if phase:
                    self._seconds[phase] += before.elapsed_time(after) / 1e3
        self._profile.trained(self._seconds, self._steps)

    def _stop(self) -> None:
        if self._recorder is not None:
            self._profile.end(self._recorder, "train")
            self._recorder = None

    def _resume(self) -> float:
        """Return the time after the profiler's own work."""
        if self._cuda:
            self._mark("")
        return time.perf_counter()

    def _mark(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._profile.device))
        self._marks.append((phase, event))

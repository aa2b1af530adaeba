"""Spans: where the time of a process goes, recorded with ``--profile`` and never else.

Times are taken with `time.perf_counter_ns` and written down as Unix nanoseconds, by one reading of
both clocks per process, so that spans of several processes stand on one time axis.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from protofl.profile.operators import Operators

WARM_UP = 3
"""Steps of a client before those whose operators are recorded."""

SAMPLED = 2
"""Steps of a client whose operators are recorded."""

Event = tuple[str, str, int, int, str, dict[str, Any]]
"""Name, category, start (Unix ns), length (ns), track within the process, arguments."""

_UNIX = time.time_ns() - time.perf_counter_ns()

_NOTHING: AbstractContextManager[None] = nullcontext()


class Spans:
    """Records what happens when; does nothing where ``on`` is False.

    Attributes:
        on: Whether the run is profiled.
        events: What was recorded.
        sums: Nanoseconds by (category, name).
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.events: list[Event] = []
        self.sums: dict[tuple[str, str], int] = defaultdict(int)

    def span(self, name: str, category: str, **args: Any) -> AbstractContextManager[None]:  # noqa: ANN401
        """Record the block that follows."""
        return _Span(self, name, category, args) if self.on else _NOTHING

    def add(
        self,
        name: str,
        category: str,
        start: int,
        end: int,
        *,
        track: str = "",
        **args: Any,  # noqa: ANN401 - scalars and strings
    ) -> None:
        """Record a span by its two readings of `time.perf_counter_ns`."""
        if not self.on:
            return
        self.sums[category, name] += end - start
        self.events.append((name, category, start + _UNIX, end - start, track, args))

    def unix(self, moment: int) -> int:
        """A reading of `time.perf_counter_ns` as Unix nanoseconds."""
        return moment + _UNIX


OFF = Spans(on=False)
"""The recorder of a run that is not profiled."""


class _Span:
    def __init__(self, spans: Spans, name: str, category: str, args: dict[str, Any]) -> None:
        self._spans, self._name, self._category, self._args = spans, name, category, args

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        self._spans.add(
            self._name, self._category, self._start, time.perf_counter_ns(), **self._args
        )


class HostProfile:
    """What a host records of its jobs; each reply carries what was recorded of its job.

    Args:
        on: Whether the run is profiled.
        device: The clients' device.
    """

    def __init__(self, on: bool, device: torch.device) -> None:
        self.spans = Spans() if on else OFF
        self.sample = False
        """Whether operators are recorded in this job."""
        self.device = device
        self._phases: dict[str, int] = defaultdict(int)
        self._steps = 0
        self._operators: dict[str, Any] = {}
        self._own: dict[str, int] = defaultdict(int)

    def operators(self, part: str) -> AbstractContextManager[None]:
        """Record the operators of the block, where this job is a sample."""
        return _Sampled(self, part) if self.sample else _NOTHING

    @contextmanager
    def steps(self, count: int) -> Iterator[Callable[[str], None]]:
        """What an engine calls in its steps, of which there will be so many; see `Phases`."""
        if not self.spans.on:
            yield lambda phase: None
            return
        laps = Phases(self, count)
        yield laps
        laps.finish()

    def job_done(self, name: str, start: int, **args: Any) -> str:  # noqa: ANN401 - scalars
        """All that was recorded of a job, as JSON; the next one begins empty."""
        end = time.perf_counter_ns()
        self.spans.add(name, "job", start, end, **args)
        found = {
            "process": [socket.gethostname(), os.getpid()],
            "job": [self.spans.unix(start), self.spans.unix(end)],
            "events": self.spans.events,
            "phases": self._phases,
            "steps": self._steps,
            "operators": self._operators,
            "profiler": self._own,
        }
        text = json.dumps(found)
        self.spans.events, self._phases, self._steps = [], defaultdict(int), 0
        self._operators, self._own, self.sample = {}, defaultdict(int), False
        return text

    # --- from the blocks below ------------------------------------------------------------------

    def has(self, part: str) -> bool:
        """Whether this job's operators of that part were recorded already."""
        return part in self._operators

    def begin(self, part: str) -> Operators:
        """Start recording operators of a part of the job."""
        start = time.perf_counter_ns()
        recorder = Operators(self.device)
        self._book(part, start, "start of torch's profiler")
        return recorder

    def end(self, recorder: Operators, part: str, within: list[tuple[int, int]]) -> None:
        """Stop recording, and keep what ran within intervals of time."""
        start = time.perf_counter_ns()
        events, self._operators[part] = recorder.stop(within)
        for name, category, begin, end, track in events:
            self.spans.add(name, category, begin, end, track=track)
        self._book(part, start, "end of torch's profiler")

    def _book(self, part: str, start: int, name: str) -> None:
        end = time.perf_counter_ns()
        self._own[part] += end - start
        self.spans.add(name, "profiler", start, end)

    def trained(self, seconds: dict[str, int], steps: int) -> None:
        """Book an engine's phases."""
        for phase, value in seconds.items():
            self._phases[phase] += value
        self._steps += steps


class _Sampled:
    def __init__(self, profile: HostProfile, part: str) -> None:
        self._profile, self._part = profile, part

    def __enter__(self) -> None:
        self._recorder = self._profile.begin(self._part)
        self._start = time.perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        within = [(self._start, time.perf_counter_ns())]
        self._profile.end(self._recorder, self._part, within)


class Phases:
    """Books the time of training steps by phase: an engine calls it at the end of each phase.

    A phase ``data`` opens a step. On a GPU phases are timed there, between events in the stream,
    so that nothing waits for the device.
    """

    def __init__(self, profile: HostProfile, steps: int) -> None:
        self._profile, self._spans = profile, profile.spans
        self._seconds: dict[str, int] = defaultdict(int)
        self._steps = 0
        wanted = profile.sample and not profile.has("train")
        self._first = max(1, min(1 + WARM_UP, steps - SAMPLED + 1)) if wanted else 0
        self._recorder: Operators | None = None
        self._within: list[tuple[int, int]] = []
        self._step_start = 0
        self._cuda = profile.device.type == "cuda"
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        if self._cuda:
            self._mark("")
        self._last = time.perf_counter_ns()

    def __call__(self, phase: str) -> None:
        """Book the time since the last call."""
        start, now = self._last, time.perf_counter_ns()
        self._seconds[phase] += now - start
        if self._cuda:
            self._mark(phase)
        if phase == "data":
            self._close_step(start)
            self._steps += 1
            if self._first and self._steps == self._first:
                self._recorder = self._profile.begin("train")
                now = self._step_start = self._resume()
            elif self._recorder is not None and self._steps == self._first + SAMPLED:
                self._stop()
                now = self._resume()
        if self._recorder is not None and now > start and self._step_start <= start:
            self._spans.add(phase, "phase", start, now)
            self._within.append((start, now))
        self._last = now

    def finish(self) -> None:
        """Hand over what was booked."""
        if self._recorder is not None:
            self._close_step(self._last)
            self._stop()
        if self._cuda:
            torch.cuda.synchronize(self._profile.device)
            self._seconds = defaultdict(int)
            for (_, before), (phase, after) in zip(self._marks, self._marks[1:], strict=False):
                if phase:
                    self._seconds[phase] += round(before.elapsed_time(after) * 1e6)
        self._profile.trained(self._seconds, self._steps)

    def _close_step(self, end: int) -> None:
        if self._recorder is not None and self._step_start:
            self._spans.add(f"step {self._steps - 1}", "step", self._step_start, end)
            self._step_start = end

    def _stop(self) -> None:
        assert self._recorder is not None
        self._profile.end(self._recorder, "train", self._within)
        self._recorder = None

    def _resume(self) -> int:
        """Now, behind what the profiler did for itself."""
        if self._cuda:
            self._mark("")
        return time.perf_counter_ns()

    def _mark(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._profile.device))
        self._marks.append((phase, event))

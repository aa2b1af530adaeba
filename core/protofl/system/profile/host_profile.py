"""The profile of a host: seconds by training phase, and samples of operators."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from protofl.system.profile.clock import UnprofiledHost


class Operators:
    """Records operators from its creation until `stop`.

    It uses the profiler below `torch.profiler.profile`, which would import torch's compiler and
    take a second.
    """

    def __init__(self, device: torch.device) -> None:
        # torch's profiler writes lines of its own to standard error at every level below.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profiler: Any = None
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # Otherwise the calling program is profiling, and there is only one profiler.
            cuda = "cuda" if device.type == "cuda" else None
            self._profiler = profile(use_kineto=True, use_device=cuda)
            self._profiler.__enter__()

    def stop(self) -> dict[str, Any]:
        """Stop recording.

        Returns:
            ``cpu`` and ``gpu``: {operator: [seconds without those of operators inside, calls]};
            ``trace``: the events of torch's own trace in Chrome's format.
        """
        if self._profiler is None:
            return {"cpu": {}, "gpu": {}, "trace": []}
        self._profiler.__exit__(None, None, None)
        sums: dict[str, Any] = {"cpu": {}, "gpu": {}}
        for op in self._profiler.key_averages():
            side = "cpu" if op.device_type.name == "CPU" else "gpu"
            self_time = op.self_cpu_time_total if side == "cpu" else op.self_device_time_total
            sums[side][op.key] = [max(0.0, self_time) / 1e6, op.count]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        self._profiler = None
        return sums | {"trace": trace}


WARM_UP = 3
"""Steps of a client before those whose operators are recorded."""


SAMPLED = 2
"""Steps of a client whose operators are recorded."""


class HostProfile(UnprofiledHost):
    """Records the profile of each job of a host; the reply carries it.

    Args:
        device: The clients' device.
    """

    on = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._start_anew()

    def _start_anew(self) -> None:
        self._phases: dict[str, float] = defaultdict(float)
        self._parts: dict[str, float] = defaultdict(float)
        self._steps = 0
        self._operators: dict[str, object] = {}
        self._own: dict[str, float] = defaultdict(float)
        self.sample = False

    @contextmanager
    def operators(self, block: str, elsewhere: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Record the seconds of a block, and its operators if this job is a sample.

        Args:
            block: Its name.
            elsewhere: Returns the job's seconds so far that count in another stage; by default 0.
        """
        recorder = self.begin(block) if self.sample else None
        start = time.perf_counter() - elsewhere()
        yield
        self._parts[block] += time.perf_counter() - elsewhere() - start
        if recorder:
            self.end(recorder, block)

    @contextmanager
    def steps(self, count: int) -> Iterator[Callable[[str], None]]:
        """Yield the function that an engine calls in its ``count`` steps; see `Phases`."""
        laps = Phases(self, count)
        yield laps
        laps.finish()

    def job_done(self, start: float) -> str:
        """Return the record of a job since a time of `time.perf_counter`, as JSON."""
        job = {
            "process": [socket.gethostname(), os.getpid()],
            "seconds": time.perf_counter() - start,
            "phases": self._phases,
            "parts": self._parts,
            "steps": self._steps,
            "operators": self._operators,
            "profiler": self._own,
        }
        self._start_anew()
        return json.dumps(job)

    # --- called by the blocks below -------------------------------------------------------------

    def has(self, block: str) -> bool:
        """Return True if this job's operators of that part were recorded already."""
        return block in self._operators

    def begin(self, block: str) -> Operators:
        """Start recording operators of a part of the job."""
        start = time.perf_counter()
        recorder = Operators(self.device)
        self._own[block] += time.perf_counter() - start
        return recorder

    def end(self, recorder: Operators, block: str) -> None:
        """Stop recording."""
        start = time.perf_counter()
        self._operators[block] = recorder.stop()
        self._own[block] += time.perf_counter() - start

    def trained(self, seconds: dict[str, float], steps: int) -> None:
        """Add an engine's phases."""
        for phase, value in seconds.items():
            self._phases[phase] += value
        self._steps += steps


class Phases:
    """Counts the seconds of training steps by phase: an engine calls it at the end of each phase.

    A phase ``data`` starts a step. On a GPU, events in the stream time the phases, so that nothing
    waits for the device.
    """

    def __init__(self, profile: HostProfile, steps: int) -> None:
        self._profile = profile
        self._seconds: dict[str, float] = defaultdict(float)
        self._steps = 0
        sampled = profile.sample and not profile.has("train")
        self._first = max(1, min(1 + WARM_UP, steps - SAMPLED + 1)) if sampled else 0
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
        """Add the seconds to the profile of the host."""
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

"""The profile that ``--profile`` makes of the clocks of a run and its hosts."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from protofl.system.clocks import NoProfile
from protofl.system.files.atomic import write_json

TRAINING = ("data", "forward", "loss", "backward", "update")


class RunProfile(NoProfile):
    """Sums the seconds that the run and its hosts record.

    Args:
        planning: Seconds of the plan.
    """

    on = True

    def __init__(self, planning: float = 0.0) -> None:
        self._own: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._own["start"]["plan"] = planning
        self._workers: set[tuple[str, int]] = set()
        self._rounds = 0
        self._wall = 0.0
        self._stages: dict[str, float] = defaultdict(float)
        self._phases: dict[str, float] = defaultdict(float)

    @contextmanager
    def span(self, name: str, category: str) -> Iterator[None]:
        """Count the seconds of a block, without those of blocks inside it."""
        seconds = self._own[category]
        start, before = time.perf_counter(), sum(seconds.values())
        try:
            yield
        finally:
            inside = sum(seconds.values()) - before
            seconds[name] += time.perf_counter() - start - inside

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a round."""
        start = time.perf_counter()
        yield
        self._rounds += 1
        self._wall += time.perf_counter() - start

    def take(self, recorded: str, seconds: Mapping[str, float]) -> None:
        """Add a host's record of a client's job, and the job's seconds by stage."""
        job = json.loads(recorded)
        self._workers.add(tuple(job["process"]))
        for stage, value in seconds.items():
            self._stages[stage] += value
        for phase, value in job["phases"].items():
            self._phases[phase] += value

    def summary(self) -> dict[str, Any]:
        """Return the seconds of the run by kind of work; see docs/how-to/profile-a-run.md."""
        phases = self._phases
        order = [*(p for p in TRAINING if p in phases), *sorted(phases.keys() - {*TRAINING})]
        training = {phase: phases[phase] for phase in order}
        if training:
            training["other"] = max(0.0, self._stages["train"] - sum(training.values()))
        server = {**self._own["server"]}
        server["waiting for workers"] = server.pop("waiting for workers", 0.0)  # after the server's
        server["other"] = max(0.0, self._wall - sum(server.values()))
        work = self._wall * max(1, len(self._workers))
        return {
            "rounds": self._rounds,
            "seconds": self._wall,
            "workers": len(self._workers),
            "start": dict(self._own["start"]),
            "stages": dict(self._stages),
            "training": training,
            "waiting": max(0.0, work - sum(self._stages.values())),
            "server": server,
        }

    def write(self, folder: Path) -> None:
        """Write ``summary.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "summary.json", self.summary())


class HostProfile(NoProfile):
    """Records the phases of each job of a host; the reply carries them.

    Args:
        device: The clients' device.
    """

    on = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phases: dict[str, float] = defaultdict(float)

    @contextmanager
    def steps(self) -> Iterator[Callable[[str], None]]:
        """Yield the function that an engine calls at the end of each phase of its steps."""
        laps = _Laps(self._device)
        yield laps
        for phase, seconds in laps.seconds():
            self._phases[phase] += seconds

    def job_done(self) -> str:
        """Return the record of a job, as JSON."""
        phases, self._phases = self._phases, defaultdict(float)
        return json.dumps({"process": [socket.gethostname(), os.getpid()], "phases": phases})


class _Laps:
    """The ends of phases. On a GPU, events in the stream mark them, so that nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._marks = device, list[tuple[str, Any]]()
        self("")

    def __call__(self, phase: str) -> None:
        """Mark the end of a phase."""
        mark: Any = time.perf_counter()
        if self._device.type == "cuda":
            mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(self._device))
        self._marks.append((phase, mark))

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield each phase with its seconds."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
        for (_, before), (phase, after) in pairwise(self._marks):
            yield phase, before.elapsed_time(after) / 1e3 if on_gpu else after - before

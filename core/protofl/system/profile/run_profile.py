"""The profile of a run: seconds by name, sums over all processes, and torch's trace of samples."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.system.files.atomic import write_file, write_json
from protofl.system.profile.clock import Unprofiled

TRAINING = ("data", "forward", "loss", "backward", "update")


PARTS = {"train": ("train",), "upload": ("prototypes", "payload"), "evaluate": ("evaluate",)}
"""{sample of operators: the stages that it represents}."""


OWN = {"train": "train", "upload": "payload", "evaluate": "evaluate"}
"""{sample of operators: the stage in which the profiler ran}."""


@dataclass
class _Worker:
    """A process with clients in a stage: seconds of its jobs, and the time of its last reply."""

    busy: float = 0.0
    last: float = 0.0


class RunProfile(Unprofiled):
    """Sums the seconds and samples that the run and its hosts record.

    Args:
        architecture_of: Returns the name of a client's architecture.
    """

    on = True

    def __init__(self, architecture_of: Callable[[int], str]) -> None:
        super().__init__()
        self._architecture_of = architecture_of
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._rounds = 0
        self._sampled: set[str] = set()
        self._asked: dict[int, set[str]] = {}
        self._stages: dict[str, float] = defaultdict(float)
        self._by_stage: dict[tuple[str, str], float] = defaultdict(float)
        self._phases: dict[str, float] = defaultdict(float)
        self._wall = self._slowest = self._between = self._window = self._own = self._uploads = 0.0
        self._clients: dict[str, set[int]] = defaultdict(set)
        self._steps: dict[str, int] = defaultdict(int)
        self._trained: dict[str, float] = defaultdict(float)
        self._operators: dict[tuple[str, str], dict[str, Any]] = {}

    # --- during the run ------------------------------------------------------------------------

    @contextmanager
    def round(self, number: int, *, last: bool) -> Iterator[None]:
        """Time a round; operators are sampled once per architecture, after the first round."""
        self._asked, self._may_sample = {}, number > 0 or last
        start = time.perf_counter()
        yield
        self._rounds += 1
        self._wall += time.perf_counter() - start

    @contextmanager
    def stage(self, name: str, clients: Sequence[int]) -> Iterator[set[int]]:
        """Time a stage with jobs for workers; yield the clients whose operators are sampled."""
        start = time.perf_counter()
        for worker in self._workers.values():
            worker.busy, worker.last = 0.0, start
        yield {client for client in clients if self._wants(name, client)}
        end = time.perf_counter()
        for worker in self._workers.values():
            idle = end - worker.last
            self._slowest += idle
            self._between += max(0.0, end - start - worker.busy - idle)
        self._window += end - start

    def take(self, client: int, recorded: str, seconds: Mapping[str, float]) -> None:
        """Add a host's record of a client's job, and the job's seconds by stage."""
        job = json.loads(recorded)
        worker = self._workers.setdefault(tuple(job["process"]), _Worker())
        worker.busy += job["seconds"]
        worker.last = time.perf_counter()
        name = self._architecture_of(client)
        profiler_seconds = {OWN[block]: value for block, value in job["profiler"].items()}
        self._own += sum(profiler_seconds.values())
        for stage, value in seconds.items():
            # The profiler may run in work that counts in another stage (features in an upload).
            spent = max(0.0, value - profiler_seconds.get(stage, 0.0))
            self._stages[stage] += spent
            self._by_stage[name, stage] += spent
        for phase, value in job["phases"].items():
            self._phases[phase] += value
        self._uploads += job["parts"].get("upload", 0.0)
        if job["steps"]:
            self._clients[name].add(client)
            self._steps[name] += job["steps"]
            self._trained[name] += sum(job["phases"].values())
        for block, operators in job["operators"].items():
            self._operators[name, block] = operators

    def _wants(self, stage: str, client: int) -> bool:
        """Return True for the first client of each architecture, in training and evaluation."""
        name = self._architecture_of(client)
        if stage == "train" and self._may_sample and name not in self._sampled:
            self._sampled.add(name)
            self._asked[client] = {"train", "evaluate"}
        if stage in self._asked.get(client, ()):
            self._asked[client].remove(stage)
            return True
        return False

    # --- at the end -----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the seconds of the run by kind of work; see docs/how-to/profile-a-run.md."""
        phases = self._phases
        order = [*(p for p in TRAINING if p in phases), *sorted(phases.keys() - {*TRAINING})]
        training = {phase: phases[phase] for phase in order}
        if training:
            training["other"] = max(0.0, self._stages["train"] - sum(training.values()))
        rest = max(0.0, self._stages.get("payload", 0.0) - self._uploads)
        payload = {"upload_payload": self._uploads, "other": rest} if self._uploads else {}
        waiting = {
            "for the slowest": self._slowest,
            "between jobs": self._between,
            "for the server": max(0.0, self._wall - self._window) * max(1, len(self._workers)),
        }
        server = {**self.sums.seconds["server"], "waiting for workers": self._window}
        server["other"] = max(0.0, self._wall - sum(server.values()))
        return {
            "rounds": self._rounds,
            "seconds": self._wall,
            "workers": len(self._workers),
            "start": dict(self.sums.seconds["start"]),
            "stages": dict(self._stages),
            "training": training,
            "payload": payload,
            "profiler": self._own,
            "waiting": waiting,
            "server": server,
            "architectures": [
                {
                    "name": name,
                    "clients": len(self._clients[name]),
                    "steps": steps,
                    "seconds": self._trained[name],
                }
                for name, steps in sorted(self._steps.items(), key=lambda i: -self._trained[i[0]])
            ],
            "operators": self._ranked("cpu"),
            "kernels": self._ranked("gpu"),
        }

    def _ranked(self, side: str) -> list[dict[str, Any]]:
        """Rank operators by their own time; a sample represents its architecture's total time."""
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        for (name, block), sample in self._operators.items():
            whole = sum(self_seconds for self_seconds, _ in sample[side].values())
            stands_for = sum(self._by_stage[name, stage] for stage in PARTS[block])
            for operator, (self_seconds, count) in sample[side].items():
                seconds[operator] += self_seconds / (whole or 1.0) * stands_for
                calls[operator] += count
        total = sum(seconds.values()) or 1.0
        ranked = sorted(seconds.items(), key=lambda item: -item[1])
        return [
            {"name": name, "share": value / total, "seconds": value, "sampled_calls": calls[name]}
            for name, value in ranked
        ]

    def write(self, folder: Path) -> None:
        """Write ``summary.json``, and torch's trace of all samples as ``trace.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "summary.json", self.summary())
        events = [event for sample in self._operators.values() for event in sample["trace"]]
        write_file(folder / "trace.json", json.dumps({"traceEvents": events}))

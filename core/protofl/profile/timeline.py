"""The timeline of a profiled run: the spans of all its processes, their sums, and the trace.

The trace is in Chrome's trace event format, which https://ui.perfetto.dev and chrome://tracing
open (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofl.profile.spans import OFF, Event, Spans

LIMIT = 100_000
"""Spans that a trace keeps, operators aside; the sums are over all."""

CLOCKS = 1_000
"""Nanoseconds by which torch's profiler and this process may disagree about a moment."""

TRAINING = ("data", "forward", "loss", "backward", "update")
PARTS = {"train": ("train",), "upload": ("prototypes", "payload"), "evaluate": ("evaluate",)}
"""The stages for which each sample of operators stands."""

OWN = {"train": "train", "upload": "payload", "evaluate": "evaluate"}
"""The stage in which the profiler worked for a sample."""


@dataclass
class _Worker:
    """A process with clients: what it did, and when."""

    name: str
    events: list[list[Any]] = field(default_factory=list)
    jobs: list[tuple[int, int]] = field(default_factory=list)
    low: int = -(2**62)
    high: int = 2**62

    @property
    def shift(self) -> int:
        """What brings its clock to ours: nothing, unless its jobs lie where they can't."""
        return min(max(0, self.low), self.high)


class Timeline:
    """Collects what the run and its hosts record; does nothing where ``on`` is False.

    Args:
        architecture_of: Gives the name of a client's architecture.
        on: Whether the run is profiled.
    """

    def __init__(self, architecture_of: Callable[[int], str], *, on: bool = True) -> None:
        self.on = on
        self.spans = Spans() if on else OFF
        self._architecture_of = architecture_of
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._rounds = 0
        self._wall = 0
        self._sampled: set[str] = set()
        self._asked: dict[int, set[str]] = {}
        self._stages: dict[str, float] = defaultdict(float)
        self._by_stage: dict[tuple[str, str], float] = defaultdict(float)
        self._phases: dict[str, int] = defaultdict(int)
        self._busy = self._slowest = self._between = self._window = self._own = 0
        self._clients: dict[str, set[int]] = defaultdict(set)
        self._steps: dict[str, int] = defaultdict(int)
        self._trained: dict[str, float] = defaultdict(float)
        self._operators: dict[tuple[str, str], dict[str, Any]] = {}
        self._kept = self._left_out = 0

    # --- while the run goes on ------------------------------------------------------------------

    @contextmanager
    def round(self, trial: int, number: int, *, last: bool) -> Iterator[None]:
        """One round: operators are sampled once per architecture, after the first round."""
        if not self.on:
            yield
            return
        self._asked = {}
        self._may_sample = number > 0 or last
        start = time.perf_counter_ns()
        with self.spans.span(f"round {number}", "round", trial=trial, round=number):
            yield
        self._rounds += 1
        self._wall += time.perf_counter_ns() - start

    @contextmanager
    def stage(self, name: str, clients: Sequence[int]) -> Iterator[set[int]]:
        """A stage in which the workers work on clients; of those given operators are wanted."""
        if not self.on:
            yield set()
            return
        wanted = {client for client in clients if self._wants(name, client)}
        for worker in self._workers.values():
            worker.jobs.clear()
        start = time.perf_counter_ns()
        self._begin = self.spans.unix(start)
        with self.spans.span(name, "workers", jobs=len(clients)):
            yield wanted
        end = time.perf_counter_ns()
        for worker in self._workers.values():
            busy = sum(stop - begin for begin, stop in worker.jobs)
            last = max((stop for _, stop in worker.jobs), default=self._begin)
            idle = max(0, self.spans.unix(end) - last)
            self._busy += busy
            self._slowest += idle
            self._between += max(0, end - start - busy - idle)
        self._window += end - start

    def take(self, client: int, recorded: str, seconds: Mapping[str, float]) -> None:
        """What a host recorded of a client's job, and what it took by stage."""
        now = self.spans.unix(time.perf_counter_ns())
        found = json.loads(recorded)
        key = found["process"][0], found["process"][1]
        worker = self._workers.get(key)
        if worker is None:
            name = f"worker {len(self._workers)} ({key[0]}, process {key[1]})"
            worker = self._workers[key] = _Worker(name)
        start, end = found["job"]
        worker.low, worker.high = max(worker.low, self._begin - start), min(worker.high, now - end)
        worker.jobs.append((start + worker.shift, end + worker.shift))
        self._keep(worker.events, found["events"], sampled=bool(found["operators"]))
        self._count(client, seconds, found)

    def _wants(self, stage: str, client: int) -> bool:
        """The first client of each architecture that trains; then its evaluation."""
        name = self._architecture_of(client)
        if stage == "train" and self._may_sample and name not in self._sampled:
            self._sampled.add(name)
            self._asked[client] = {"train", "evaluate"}
        if stage in self._asked.get(client, ()):
            self._asked[client].remove(stage)
            return True
        return False

    def _keep(self, kept: list[list[Any]], events: list[list[Any]], *, sampled: bool) -> None:
        free = len(events) if sampled else max(0, LIMIT - self._kept)
        kept += events[:free]
        self._kept += 0 if sampled else len(events[:free])
        self._left_out += len(events[free:])

    def _count(self, client: int, spent: Mapping[str, float], found: dict[str, Any]) -> None:
        name = self._architecture_of(client)
        own = {OWN[part]: value for part, value in found["profiler"].items()}
        self._own += sum(own.values())
        for stage, value in spent.items():
            # The profiler may work in what a stage leaves to another one (features in an upload).
            seconds = max(0.0, value - own.get(stage, 0) / 1e9)
            self._stages[stage] += seconds
            self._by_stage[name, stage] += seconds
        for phase, value in found["phases"].items():
            self._phases[phase] += value
        if found["steps"]:
            self._clients[name].add(client)
            self._steps[name] += found["steps"]
            self._trained[name] += sum(found["phases"].values()) / 1e9
        for part, sums in found["operators"].items():
            self._operators[name, part] = sums
            self._left_out += sums["left_out"]

    # --- at the end -----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Where the time went, in seconds; see docs/how-to/profile-a-run.md."""
        workers = max(1, len(self._workers))
        wall = self._wall / 1e9
        phases = {p: v / 1e9 for p, v in self._phases.items()}
        order = [*(p for p in TRAINING if p in phases), *sorted(phases.keys() - {*TRAINING})]
        training = {phase: phases[phase] for phase in order}
        if training:
            training["other"] = max(0.0, self._stages["train"] - sum(training.values()))
        waiting = {
            "for the slowest": self._slowest / 1e9,
            "between jobs": self._between / 1e9,
            "for the server": max(0, self._wall - self._window) * workers / 1e9,
        }
        own = {n: v / 1e9 for (c, n), v in self.spans.sums.items() if c == "server"}
        server = own | {"waiting for workers": self._window / 1e9}
        server["other"] = max(0.0, wall - sum(server.values()))
        return {
            "rounds": self._rounds,
            "seconds": wall,
            "workers": len(self._workers),
            "start": {n: v / 1e9 for (c, n), v in self.spans.sums.items() if c == "start"},
            "stages": dict(self._stages),
            "training": training,
            "profiler": self._own / 1e9,
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
            "left_out": self._left_out,
        }

    def _ranked(self, side: str) -> list[dict[str, Any]]:
        """Operators by their own time: each sample stands for all of its architecture's time."""
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        for (name, part), sums in self._operators.items():
            # An operator's own time is its time less that of others within it: a difference of
            # clock readings, which for a tiny one may come out below 0.
            whole = sum(max(own, 0) for own, _ in sums[side].values())
            stands_for = sum(self._by_stage[name, stage] for stage in PARTS[part])
            for operator, (own, count) in sums[side].items():
                seconds[operator] += max(own, 0) / max(whole, 1) * stands_for
                calls[operator] += count
        total = sum(seconds.values()) or 1.0
        return [
            {"name": name, "share": value / total, "seconds": value, "sampled_calls": calls[name]}
            for name, value in sorted(seconds.items(), key=_others_last)
        ]

    def write(self, folder: Path) -> None:
        """Write ``trace.json`` and ``summary.json``."""
        if not self.on:
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(self.summary(), indent=1) + "\n")
        with (folder / "trace.json").open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for number, event in enumerate(self._trace()):
                file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")

    def _trace(self) -> Iterator[dict[str, Any]]:
        """All events: process 0 is the run, processes 1… are the workers."""
        own = f"run and server (process {os.getpid()})"
        processes: list[tuple[str, Iterable[Any], int]] = [(own, self.spans.events[:LIMIT], 0)]
        processes += [(w.name, w.events, w.shift) for w in self._workers.values()]
        zero = min((event[2] for _, events, _ in processes for event in events), default=0)
        for pid, (name, events, shift) in enumerate(processes):
            yield _about("process_name", pid, 0, {"name": name})
            yield _about("process_sort_index", pid, 0, {"sort_index": pid})
            tracks = {"": 0}
            for event in _nested(events):
                if event[4] not in tracks:
                    tracks[event[4]] = len(tracks)
                yield _complete(event, pid, tracks[event[4]], shift - zero)
            for track, tid in tracks.items():
                label = track or ("rounds" if pid == 0 else "clients")
                yield _about("thread_name", pid, tid, {"name": label})
                yield _about("thread_sort_index", pid, tid, {"sort_index": tid})


def _nested(events: Iterable[Any]) -> Iterator[Any]:
    """Events by their start, without what an operator is too long for the span around it.

    Operators are timed by torch's profiler, spans by this process: their clocks agree to less
    than ``CLOCKS`` nanoseconds. An event that is longer by more is left as it is.
    """
    ends: dict[str, list[int]] = {}
    for event in sorted(events, key=lambda e: (e[2], -e[3])):
        name, category, start, length, track, args = event
        around = ends.setdefault(track, [])
        while around and around[-1] <= start:
            around.pop()
        over = start + length - around[-1] if around else 0
        if 0 < over < CLOCKS:
            length -= over
        around.append(start + length)
        yield name, category, start, length, track, args


def _complete(event: Event, pid: int, tid: int, shift: int) -> dict[str, Any]:
    name, category, start, length, _, args = event
    # Microseconds. Whether a reader rounds or cuts at nanoseconds, a fifth of one on top has it
    # find the number that was taken, and spans lie within each other exactly.
    times = {"ts": round((start + shift + 0.2) / 1000, 4), "dur": round((length + 0.2) / 1000, 4)}
    found = {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid, **times}
    return found | {"args": args} if args else found


def _about(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _others_last(item: tuple[str, float]) -> tuple[bool, float]:
    return item[0] == "others", -item[1]


NOT_PROFILED = Timeline(str, on=False)
"""The timeline of a run that is not profiled."""

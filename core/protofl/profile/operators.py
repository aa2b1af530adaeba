"""Operators: what PyTorch ran in a short while, by its own profiler, on the clock of the spans."""

from __future__ import annotations

import json
import os
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

ANCHOR = "protofl.anchor"
LIMIT = 8_000
"""Operators that a sample keeps in the trace; the sums are over all."""

TOP = 40
"""Operators that a sample's sums name."""

ON_CPU = {"cpu_op", "cuda_runtime", "cuda_driver"}
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}

Operator = tuple[str, str, int, int, str]
"""Name, category, start and end by `time.perf_counter_ns`, track."""


class Operators:
    """Records operators from now on.

    The profiler under `torch.profiler.profile` is used, as starting that one imports torch's
    compiler, which takes a second. Its clock is another one than ours: a marked moment is in both.
    """

    def __init__(self, device: torch.device) -> None:
        # torch's profiler writes lines of its own to standard error at every level below.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._moment = 0
        self._profiler: Any = None
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return  # the program around us is profiling already, and there is one profiler only
        self._profiler = profile(
            use_kineto=True, use_device="cuda" if device.type == "cuda" else None
        )
        self._profiler.__enter__()
        for _ in range(2):  # the first one takes longer
            with record_function(ANCHOR):
                self._moment = time.perf_counter_ns()

    def stop(self, within: list[tuple[int, int]]) -> tuple[list[Operator], dict[str, Any]]:
        """What ran within intervals of time.

        Args:
            within: Intervals by `time.perf_counter_ns`, ascending and apart; an operator counts
                where its middle lies within one, and is cut to it.

        Returns:
            The operators in the order of their start, and their sums: ``{"cpu": {name:
            [nanoseconds without those of operators inside, calls]}, "gpu": …, "left_out": …}``.
        """
        if self._profiler is None:
            return [], {"cpu": {}, "gpu": {}, "left_out": 0}
        self._profiler.__exit__(None, None, None)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._profiler.export_chrome_trace(str(path))
            found = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        self._profiler = None
        return _read(found, self._moment, within)


def _read(
    found: list[dict[str, Any]], moment: int, within: list[tuple[int, int]]
) -> tuple[list[Operator], dict[str, Any]]:
    found = [event for event in found if event.get("ph") == "X"]
    anchors = [event for event in found if event["name"] == ANCHOR]
    if not anchors:
        return [], {"cpu": {}, "gpu": {}, "left_out": 0}
    anchor = max(anchors, key=lambda event: event["ts"])
    # Microseconds as floats of 1e12 and more: differences first, then nanoseconds.
    zero, half = anchor["ts"], anchor["dur"] / 2
    tracks: dict[tuple[str, Any], list[list[Any]]] = defaultdict(list)
    starts = [start for start, _ in within]
    for event in found:
        category = event.get("cat", "")
        if category not in ON_CPU | ON_GPU:
            continue
        start = moment + round((event["ts"] - zero - half) * 1000)
        # The processor's counter, which torch reads, can differ between cores of a virtual machine.
        end = start + max(0, round(event["dur"] * 1000))
        if category in ON_GPU:  # what was launched within runs later
            stream = event.get("args", {}).get("stream", event["tid"])
            tracks["gpu", f"GPU stream {stream}"].append([start, end, event["name"], category])
            continue
        place = bisect_right(starts, (start + end) // 2) - 1
        if place < 0 or (start + end) // 2 > within[place][1]:
            continue
        low, high = within[place]
        own = event["tid"] == anchor["tid"]
        track = ("cpu", "" if own else f"thread {event['tid']}")
        tracks[track].append([max(start, low), min(end, high), event["name"], category])
    sums: dict[str, dict[str, list[int]]] = {"cpu": {}, "gpu": {}}
    operators: list[Operator] = []
    for (side, track), events in tracks.items():
        for start, end, name, category in _nested(events, sums[side]):
            operators.append((name, category, start, end, track))
    operators.sort(key=lambda o: (o[2], -o[3]))
    left_out = max(0, len(operators) - LIMIT)
    return operators[:LIMIT], {s: _top(v) for s, v in sums.items()} | {"left_out": left_out}


def _nested(events: list[list[Any]], sums: dict[str, list[int]]) -> list[list[Any]]:
    """The events of one track, each within the one around it; books their own time."""
    events.sort(key=lambda e: (e[0], -e[1]))
    around: list[list[Any]] = []
    for event in events:
        while around and around[-1][1] <= event[0]:
            around.pop()
        if around:
            event[1] = min(event[1], around[-1][1])
            sums[around[-1][2]][0] -= event[1] - event[0]
        own = sums.setdefault(event[2], [0, 0])
        own[0] += event[1] - event[0]
        own[1] += 1
        around.append(event)
    return events


def _top(sums: dict[str, list[int]]) -> dict[str, list[int]]:
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])
    kept = dict(ranked[:TOP])
    rest = [values for _, values in ranked[TOP:]]
    if rest:
        kept["others"] = [sum(v[0] for v in rest), sum(v[1] for v in rest)]
    return kept

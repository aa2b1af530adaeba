"""Engines compared: seconds a round, and the share of time in which the device runs no kernel.

    python benchmarks/gpu.py --data npz:cifar100.npz
    python benchmarks/gpu.py --data digits --device cpu --tiny

Two rounds warm up (steps are recorded and compiled there, the second with prototypes at hand),
``--rounds`` are timed, and one more runs under torch's profiler. Idle is one minus the union of all
kernels' and copies' intervals over the time from the first to the last event of that round; on a
CPU there is no such number. ``vmapped`` and ``captured`` train several clients at once in this
process, so all engines run with the local backend.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import protofl as pf
import torch
from protofl.rounds.events import Event, Note
from protofl.rounds.federation import Federation
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

ENGINES = ("eager", "captured", "vmapped", "compiled")


@dataclass(frozen=True)
class Case:
    """One table: a model group, its methods and the options of its runs."""

    models: str
    methods: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("htfe8", ("fedproto", "fedtgp", "fedsa"), {"clients": 20}),
    Case("cnn4", ("fedproto", "fedavg"), {"clients": 100, "participation": 0.1}),
)
TINY = (
    Case("htcnn8", ("fedproto",), {"clients": 3, "same_init": True}),
    Case("cnn4", ("fedavg",), {"clients": 4, "participation": 0.5}),
)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run all cases and print a table; the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="digits", help="a data set, such as npz:cifar100.npz")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="only these")
    parser.add_argument("--case", type=int, action="append", help="only this case, from 0")
    parser.add_argument("--set", action="append", default=[], metavar="ENGINE.KEY=VALUE")
    parser.add_argument("--tiny", action="store_true", help="sizes for trying the script out")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    given = parser.parse_args(arguments)
    cases, rows = TINY if given.tiny else CASES, []
    for number in given.case or range(len(cases)):
        for method in cases[number].methods:
            for engine in given.engine or ENGINES:
                rows.append(measure(cases[number], method, engine, given))
                print(line(rows[-1], rows), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return rows


def measure(case: Case, method: str, engine: str, given: argparse.Namespace) -> dict[str, Any]:
    """One row: an engine's rounds of one method."""
    settings = dict(case.options)
    if given.data_dir is not None:
        settings["data_dir"] = given.data_dir
    plan = pf.Plan.make(
        {
            **settings,
            "local_epochs": 1,
            "momentum": 0.0,
            "clip": 0.0,
            "method": method,
            "models": case.models,
            "dataset": given.data,
            "engine": engine,
            "device": given.device,
            "backend": "local",
            "batch_size": 10,
            "rounds": given.rounds + 3,
            "options": {"engine": engine_options(engine, given.set)},
        }
    )
    notes: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    backend = plan.choices["backend"]
    pool = backend.call("open_pool", plan=plan, workers=1)
    federation = Federation(plan, pool, hear)
    federation.start_trial(0)
    start = time.perf_counter()
    for number in range(2):
        federation.round(number)
    settle(plan.device)
    warm_up, seconds, train = time.perf_counter() - start, [], []
    for number in range(2, 2 + given.rounds):
        start = time.perf_counter()
        found, _ = federation.round(number)
        settle(plan.device)
        seconds.append(time.perf_counter() - start)
        train.append(found["seconds"]["train"])
    idle = idle_share(plan.device, lambda: federation.round(2 + given.rounds))
    peak = (
        torch.cuda.max_memory_allocated(plan.device) / 2**30 if plan.device.type == "cuda" else None
    )
    pool.close()
    return {
        "models": case.models,
        "method": method,
        "engine": engine,
        "device": str(plan.device),
        "seconds": statistics.median(seconds),
        "spread": [min(seconds), max(seconds)],
        "train": statistics.median(train),
        "warm_up": warm_up,
        "idle": idle,
        "peak_gib": peak,
        "notes": notes,
    }


def engine_options(engine: str, texts: Iterable[str]) -> dict[str, str]:
    """The options of one engine from ``ENGINE.KEY=VALUE`` texts."""
    pairs = [text.partition("=")[::2] for text in texts]
    start = f"{engine}."
    return {key.removeprefix(start): value for key, value in pairs if key.startswith(start)}


def settle(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def idle_share(device: torch.device, work: Callable[[], object]) -> float | None:
    """The share of a round in which the device runs neither a kernel nor a copy."""
    if device.type != "cuda":
        work()
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        settle(device)
    events = profiler.events() or []
    whole = [(e.time_range.start, e.time_range.end) for e in events]
    # record_function's marks cover kernels and the gaps between them alike.
    kernels = [
        e
        for e in events
        if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    busy = [(e.time_range.start, e.time_range.end) for e in kernels]
    if not whole:
        return None
    return 1 - covered(busy) / (max(end for _, end in whole) - min(start for start, _ in whole))


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def line(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """A row of the table, with its head before the first one."""
    head = (
        "| models | method | engine | seconds a round | of which train | warm-up | idle |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    idle = "–" if row["idle"] is None else f"{row['idle']:.0%}"
    name = row["engine"] + ("*" if row["notes"] else "")
    text = (
        f"| {row['models']} | {row['method']} | {name} | {row['seconds']:.3g} "
        f"({row['spread'][0]:.3g}–{row['spread'][1]:.3g}) | {row['train']:.3g} "
        f"| {row['warm_up']:.3g} | {idle} |"
    )
    notes = "".join(f"\n* {note}" for note in row["notes"])
    return (head if len(rows) == 1 else "") + text + notes


if __name__ == "__main__":
    main()

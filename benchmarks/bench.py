"""Measure seconds per round by stage and peak memory; compare them with those of a second loop.

    python benchmarks/bench.py 'digits-*' --against benchmarks/naive.py
    python benchmarks/bench.py 'mnist-*' 'cifar10-*' --data DIR --against benchmarks/naive.py

The second loop must reach the same weights. Each loop runs in its own process. The loops take
turns, so that a change in the machine's speed affects both. Round 0 builds clients and fills caches
and does not count. A measurement is the mean of ``--rounds`` rounds. All stages except server and
total are summed over hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bench_loops
from bench_cases import CASES, Case, choose, load, write_subset

from protofl.errors import ProtoflError
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user
from protofl.system.options.parsing import assignments, merge_options, parse_options

STAGES = ("setup", "train", "prototypes", "payload", "server", "evaluate", "total")
FIRST = {"round": ("round",), "evaluate": ("round", "evaluate"), "server": ("collect", "serve")}
"""The calls of round 0 for each part of a case. The last one is the call that is measured."""

Options = dict[str, Any]
Row = dict[str, Any]


class Side:
    """A loop in its own process."""

    def __init__(self, options: Options, file: Path | None, folder: Path, *, double: bool) -> None:
        begin = time.perf_counter()
        self._process = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._do(bench_loops.start, options, folder, file and str(file), double)
        self.start = time.perf_counter() - begin
        """Seconds until the loop was ready: a fresh interpreter, imports, data, hosts."""

    def _do(self, function: Any, *values: Any) -> Any:  # noqa: ANN401 - a function of bench_loops
        return self._process.submit(function, *values).result()

    def work(self, call: str, number: int) -> dict[str, float]:
        """Call a function of the loop; see `bench_loops.work`."""
        result: dict[str, float] = self._do(bench_loops.work, call, number)
        return result

    def save(self, path: Path) -> Path:
        """Write the loop's current state."""
        self._do(bench_loops.save, path)
        return path

    def stop(self) -> int:
        """End the process; return its peak memory in bytes."""
        peak: int = self._do(bench_loops.stop)
        self.kill()
        return peak

    def kill(self) -> None:
        """End the process and cancel queued work."""
        self._process.shutdown(wait=True, cancel_futures=True)


def measure(
    case: Case,
    data: Path | None = None,
    *,
    against: Path | None = None,
    repeats: int = 5,
    rounds: int = 1,
    options: Options | None = None,
) -> Row:
    """Measure a case.

    Args:
        case: The case.
        data: A folder with data files; None to load the data set by its name.
        against: A file with another loop (`bench_loops.Loop`).
        repeats: Measurements of each loop.
        rounds: Rounds of one measurement.
        options: Options for all runs, which override the case's options.

    Returns:
        ``measures``, ``start`` (seconds) and ``memory`` (bytes) of each loop by its name, and
        ``difference`` after two rounds in float64 (None if not comparable).
    """
    with tempfile.TemporaryDirectory(prefix="protofl-bench-") as name:
        folder = Path(name)
        file = folder / f"{case.data}.npz"
        images = load(case.data, data, expand_user(default_data_dir()))
        write_subset(images, case.clients, case.samples, file)
        case_options = {
            "method": case.method,
            "models": case.models,
            "dataset": f"npz:{file}",
            "data_dir": str(folder / "cache"),
            "partition": "iid",
            "clients": case.clients,
            "rounds": max(1 + repeats * rounds, 2),
            "seed": 0,
        }
        merged = merge_options(merge_options(case_options, case.options), options or {})
        files = {"protofl": None} | ({against.name: against} if against else {})
        row: Row = {"case": case.name, "measures": {n: [] for n in files}, "memory": {}}
        with opened(files, merged, folder, double=False) as sides:
            row["start"] = {name: side.start for name, side in sides.items()}
            first(sides, case)
            for repeat in range(repeats):
                for name in list(sides)[:: -1 if repeat % 2 else 1]:
                    numbers = range(1 + repeat * rounds, 1 + (repeat + 1) * rounds)
                    timings = [sides[name].work(FIRST[case.part][-1], n) for n in numbers]
                    row["measures"][name].append(means(timings))
            row["memory"] = {name: side.stop() for name, side in sides.items()}
        row["difference"], row["where"] = None, ""
        if len(files) == 2 and merged.get("precision", "fp32") == "fp32":
            merged |= {"backend": "local", **case.check}
            with opened(files, merged, folder, double=True) as sides:
                first(sides, case)
                states = []
                for name, side in sides.items():
                    side.work(FIRST[case.part][-1], 1)
                    states.append(side.save(folder / f"{name}.safetensors"))
            row["difference"], row["where"] = bench_loops.largest_difference(*states)
    return row


@contextmanager
def opened(
    files: dict[str, Path | None], options: Options, folder: Path, *, double: bool
) -> Iterator[dict[str, Side]]:
    """Start a process for each loop."""
    sides: dict[str, Side] = {}
    try:
        for name, file in files.items():
            side_folder = Path(tempfile.mkdtemp(dir=folder))
            sides[name] = Side(options, file, side_folder, double=double)
        yield sides
    finally:
        for side in sides.values():
            side.kill()


def first(sides: dict[str, Side], case: Case) -> None:
    """Run round 0."""
    for side in sides.values():
        for call in FIRST[case.part]:
            side.work(call, 0)


def means(timings: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean seconds of each stage over rounds."""
    stages = [s for s in STAGES if any(s in seconds for seconds in timings)]
    return {s: statistics.fmean(seconds.get(s, 0.0) for seconds in timings) for s in stages}


def table(row: Row) -> Iterable[str]:
    """Render a case: one line per loop, then the ratio of times and whether results are equal."""
    totals = {name: [m["total"] for m in timings] for name, timings in row["measures"].items()}
    for name, values in totals.items():
        timings = row["measures"][name]
        stages = (
            f"{stage} {statistics.median(m[stage] for m in timings):.3g}"
            for stage in timings[0]
            if stage != "total"
        )
        yield (
            f"{row['case']:22} {name:10} {statistics.median(values):8.3f} s a round "
            f"({min(values):.3f} … {max(values):.3f}), peak {row['memory'][name] / 1e9:.2f} GB, "
            f"start {row['start'][name]:.1f} s: {', '.join(stages)}"
        )
    if len(totals) == 2:
        ours, theirs = totals.values()
        pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
        difference, equal = row["difference"], "not comparable"
        if difference is not None:
            equal = "yes" if difference <= bench_loops.TOLERANCE else f"NO ({row['where']})"
            equal += f", largest difference {difference:.0e}"
        yield (
            f"{'':22} ratio {statistics.median(theirs) / statistics.median(ours):.2f} "
            f"({min(pairs):.2f} … {max(pairs):.2f}), equal in float64: {equal}"
        )


def machine() -> dict[str, Any]:
    """Return properties of the machine that affect the times."""
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"system": platform.platform(), "cores": os.cpu_count(), "load_before": load_before}


def main(arguments: list[str] | None = None) -> list[Row]:
    """Measure the cases and print a table; return its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="cases: " + ", ".join(case.name for case in CASES),
    )
    parser.add_argument("cases", nargs="*", help="names or patterns, such as 'mnist-*'")
    parser.add_argument("--against", type=Path, help="a file with another loop")
    parser.add_argument("--repeats", type=int, default=5, help="measures of each loop")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of one measure")
    parser.add_argument("--data", type=Path, help="a folder with mnist….npz and cifar10….npz")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[NAME.]KEY=VALUE",
        help="an option of the runs, or of a plugin: engine=vmapped, fedproto.lambda=1",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="a file for all measures")
    args = parser.parse_args(arguments)
    rows = []
    try:
        values = assignments("--set", args.set, "[NAME.]KEY=VALUE")
        plain = {key: value for key, value in values.items() if "." not in key}
        options = parse_options({**plain, "set": {k: v for k, v in values.items() if "." in k}})
        before = machine()
        for case in choose(args.cases):
            row = measure(
                case, args.data, against=args.against, repeats=args.repeats,
                rounds=args.rounds, options=options,
            )  # fmt: skip
            rows.append(row)
            print(*table(row), sep="\n", flush=True)
            if args.json:
                args.json.write_text(json.dumps({**before, "cases": rows}, indent=1) + "\n")
    except ProtoflError as error:
        sys.exit(str(error))
    return rows


if __name__ == "__main__":
    main()

"""Measuring: every case's loops in turn, on one machine in one run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from protofl.bench import subset
from protofl.bench.cases import Case
from protofl.bench.compare import TOLERANCE, compare
from protofl.bench.driver import Side
from protofl.bench.machine import machine
from protofl.data.dataset import Dataset
from protofl.errors import UsageError
from protofl.files.folders import default_data_dir
from protofl.files.numbers import finite
from protofl.options.written import merge_options

Progress = Callable[[str, dict[str, Any]], None]

STAGES = ("setup", "train", "prototypes", "payload", "server", "evaluate", "total", "cpu")
OURS, THEIRS = "protofl", "against"
FIRST = {"round": ("round",), "evaluate": ("round", "evaluate"), "server": ("collect", "serve")}
"""What is done before the first measure, by a case's part: round 0, and the part once."""


@dataclass
class Request:
    """What to measure.

    Attributes:
        cases: The cases.
        repeats: Measures of each loop.
        rounds: Rounds of one measure, in whose mean it results.
        against: A file with another loop (`protofl.bench.loops.Loop`); None for protofl alone.
        check: Rounds after which both loops are compared in float64; 0 for no comparison.
        fresh: Whether every measure starts both loops anew, rather than going on with them.
        data: A folder with data files; None to take data sets by name.
        datasets: Where data come from, by the cases' words for them; wins over ``data``.
        options: Options of all runs (`protofl.options.settings`), which win over the cases'.
        clients: Clients in place of the cases'.
        samples: Training samples of a client in place of the cases'.
        data_dir: The cache of data sets.
    """

    cases: list[Case]
    repeats: int = 5
    rounds: int = 1
    against: Path | None = None
    check: int = 2
    fresh: bool = False
    data: Path | None = None
    datasets: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    clients: int | None = None
    samples: int | None = None
    data_dir: Path = field(default_factory=default_data_dir)


def measure(request: Request, progress: Progress) -> dict[str, Any]:
    """Measure all cases.

    Args:
        request: What to measure.
        progress: Called with ``case`` (a case begins: ``case``, ``number``, ``count``), ``step``
            (``text``), ``done`` (a case's ``row``, and the ``result`` so far).

    Returns:
        What ``--json`` writes: the machine, the request, and ``cases``.

    Raises:
        UsageError: Data are missing or too few, or the file is no loop.
        RunFailure: A loop failed.
    """
    cases = [case.scaled(request.clients, request.samples) for case in request.cases]
    unknown_data = request.datasets.keys() - {case.data for case in cases}
    if unknown_data:
        raise UsageError(
            f"--dataset {min(unknown_data)}=…: none of these cases uses it",
            f"they use: {', '.join(sorted({case.data for case in cases}))}",
        )
    sources = {c.data: subset.find_data(c.data, request.data, request.datasets) for c in cases}
    result = machine() | {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "repeats": request.repeats,
        "rounds": request.rounds,
        "fresh": request.fresh,
        "against": request.against.name if request.against else None,
        "tolerance": TOLERANCE,
        "cases": [],
    }
    data: dict[str, Dataset] = {}
    for number, case in enumerate(cases):
        progress("case", {"case": case, "number": number, "count": len(cases)})
        if case.data not in data:
            progress("step", {"text": f"data: {case.data}"})
            report = lambda line: progress("step", {"text": line})  # noqa: E731
            data_dir = request.data_dir.expanduser().absolute()
            data[case.data] = subset.load(sources[case.data], data_dir, report)
        with tempfile.TemporaryDirectory(prefix="protofl-bench-") as folder:
            row = _Measurement(case, request, Path(folder), progress).run(data[case.data])
        result["cases"].append(row)
        progress("done", {"row": row, "result": result})
    return result


class _Measurement:
    """One case."""

    def __init__(self, case: Case, request: Request, folder: Path, progress: Progress) -> None:
        self.case, self.request, self.folder, self.progress = case, request, folder, progress
        self.files = {OURS: None, THEIRS: request.against}
        self.names = [OURS, THEIRS] if request.against else [OURS]
        rounds = 1 + request.repeats * request.rounds
        self.options: dict[str, Any] = {
            "method": case.method,
            "models": case.models,
            "dataset": f"npz:{folder / case.data}.npz",
            "data_dir": str(folder / "cache"),
            "partition": "iid",
            "clients": case.clients,
            "rounds": max(rounds, request.check),
            "seed": 0,
        }
        self.options = merge_options(
            merge_options(self.options, case.options), _writable(request.options)
        )

    def run(self, images: Dataset) -> dict[str, Any]:
        """Measure, then compare."""
        case, request = self.case, self.request
        path = self.folder / f"{case.data}.npz"
        subset.write_subset(images, case.clients, case.samples, path, case.data)
        measures: dict[str, list[dict[str, float]]] = {name: [] for name in self.names}
        memory: dict[str, dict[str, Any]] = {}
        starts: dict[str, list[dict[str, float]]] = {name: [] for name in self.names}
        single: dict[str, Any] | None = None
        about: dict[str, Any] = {}
        for start in range(request.repeats if request.fresh else 1):
            with self._sides(double=False) as sides:
                for name, side in sides.items():
                    setup = self._prepare(side)
                    starts[name].append({"launch": side.launch, "clients": setup})
                about = sides[OURS].about
                if start == 0 and len(sides) == 2:
                    single = self._compared(sides, "float32")
                for repeat in [start] if request.fresh else range(request.repeats):
                    # Each goes first every other time, so that a drift of the machine hits both.
                    for name in self.names[:: -1 if repeat % 2 else 1]:
                        self._say(f"measure {repeat + 1} of {request.repeats}: {name}")
                        first = 1 + (0 if request.fresh else repeat * request.rounds)
                        measures[name].append(self._measured(sides[name], first))
                for name, side in sides.items():
                    found = side.ask("memory")
                    if found["host"] >= memory.get(name, found)["host"]:
                        memory[name] = found
        row = {
            "name": case.name,
            "method": case.method,
            "models": case.models,
            "data": case.data,
            "clients": case.clients,
            "part": case.part,
            "options": {**case.options, **_writable(request.options)},
            "target": case.target if request.against else None,
            **about,
        }
        for name in (OURS, THEIRS):
            measured = name in measures
            row[name] = (
                {
                    "seconds": _spreads(measures[name]),
                    "start": _spreads(starts[name]),
                    "repeats": measures[name],
                    "memory": memory[name],
                }
                if measured
                else None
            )
        row["ratio"] = _ratio(measures)
        row["equality"] = self._equality(single) if len(self.names) == 2 else None
        return row

    def _equality(self, single: dict[str, Any] | None) -> dict[str, Any]:
        """How far apart the loops are after round 0 in float32, and some rounds in float64."""
        double, why = None, ""
        if self.options.get("precision", "fp32") != "fp32":
            why = f"{self.options['precision']} is other arithmetic"
        elif not self.request.check:
            why = "not asked for"
        else:
            with self._sides(double=True) as sides:
                for name, side in sides.items():
                    self._say(f"float64: {name}")
                    self._prepare(side)
                    for number in range(1, self.request.check):
                        side.ask("work", part=FIRST[self.case.part][-1], number=number)
                double = self._compared(sides, "float64")
        equal = None
        if double is not None:
            found = double["largest"]
            equal = found is not None and found <= TOLERANCE and not double["accuracies_apart"]
        return {
            "equal": equal,
            "unchecked": why,
            "rounds": self.request.check,
            "options": self.case.check,
            "float64": double,
            "float32": single,
        }

    def _compared(self, sides: dict[str, Side], label: str) -> dict[str, Any]:
        paths = {name: self.folder / f"{name}-{label}.safetensors" for name in sides}
        accuracies = {
            name: side.ask("state", path=str(paths[name]))["accuracies"]
            for name, side in sides.items()
        }
        found = compare(paths[OURS], paths[THEIRS], accuracies[OURS], accuracies[THEIRS])
        for path in paths.values():
            path.unlink()
        return found | {"largest": finite(found["largest"])}

    def _prepare(self, side: Side) -> float:
        """Round 0, which warms everything up; the seconds of building clients."""
        self._say(f"round 0: {side.name}")
        found = [side.ask("work", part=part, number=0) for part in FIRST[self.case.part]]
        return float(found[0]["seconds"].get("setup", 0.0))

    def _measured(self, side: Side, first: int) -> dict[str, float]:
        """One measure: the mean of some rounds."""
        found = [
            side.ask("work", part=FIRST[self.case.part][-1], number=number)["seconds"]
            for number in range(first, first + self.request.rounds)
        ]
        stages = [s for s in STAGES if any(s in seconds for seconds in found)]
        return {s: statistics.fmean(seconds.get(s, 0.0) for seconds in found) for s in stages}

    @contextmanager
    def _sides(self, *, double: bool) -> Iterator[dict[str, Side]]:
        options = dict(self.options)
        if double:
            options |= {"backend": "local", **self.case.check}
        sides: dict[str, Side] = {}
        try:
            for name in self.names[::-1]:  # what is wrong with a file is found first
                self._say(f"start: {name}")
                folder = Path(tempfile.mkdtemp(dir=self.folder))
                sides[name] = Side(name, options, self.files[name], folder, double=double)
            yield sides
        except BaseException:
            for side in sides.values():
                side.kill()
            raise
        finally:
            for side in sides.values():
                side.close()

    def _say(self, text: str) -> None:
        self.progress("step", {"text": text})


def _writable(options: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}


def _spreads(measures: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """{stage: {min, median, max}}."""
    return {stage: spread([m[stage] for m in measures]) for stage in measures[0]}


def spread(values: list[float]) -> dict[str, float]:
    """The smallest, the median and the largest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def _ratio(measures: dict[str, list[dict[str, float]]]) -> dict[str, float] | None:
    """How many times as fast: the medians' ratio, and the extremes of the pairs'."""
    if THEIRS not in measures:
        return None
    ours, theirs = ([m["total"] for m in measures[name]] for name in (OURS, THEIRS))
    pairs = spread([b / a for a, b in zip(ours, theirs, strict=True)])
    return pairs | {"median": statistics.median(theirs) / statistics.median(ours)}

"""Difference of two recorded runs: options, data, software and results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protofl.records.row import Row
from protofl.system.files.tables import flat
from protofl.system.options.table import OPTIONS, flag_of
from protofl_workbench.recorded.recorded_run import Run

Pair = tuple[str, Any, Any]
"""A name and its values in both runs; None for a value that a run does not have."""

TIMES = ("time", "seconds")
"""Figures of a line that differ between equal runs."""

UNUSED = ("data_dir",)
"""Options of the machine that say nothing about a run."""


@dataclass(frozen=True)
class RunDifference:
    """The difference of two runs.

    Attributes:
        options: Options that differ, under the names of the command line: ``--lr``,
            ``fedproto.lambda``.
        data: ``data`` (the digest), ``split`` (its hash) and ``files`` that differ.
        software: Plugins, versions and the machine that differ.
        results: Rounds, accuracies, loss, traffic and time of both, whether they differ or not.
        equal_rounds: Number of rounds from the first on whose lines are equal to the last bit, in
            all trials that both runs have, without times.
        shared_rounds: Number of rounds that both runs have.
        first: Figures that differ in the first round that is not equal.
        first_round: That round as (trial, round), from 0; None if all shared rounds are equal.
    """

    options: list[Pair]
    data: list[Pair]
    software: list[Pair]
    results: list[Pair]
    equal_rounds: int
    shared_rounds: int
    first: list[Pair]
    first_round: tuple[int, int] | None

    @property
    def is_empty(self) -> bool:
        """True if nothing but the time differs."""
        same = not (self.options or self.data or self.software or self.first)
        return same and all(a == b for name, a, b in self.results if name not in MEASURED)


def run_difference(a: Run, b: Run) -> RunDifference:
    """Compare the records of two runs; neither is changed, and no data are loaded.

    Args:
        a: A run.
        b: Another run.
    """
    rows_a, rows_b = (
        {(row.trial, row.round): row for trial in run.trials for row in run.rows_of(trial)}
        for run in (a, b)
    )
    shared = [key for key in rows_a if key in rows_b]
    first = next((k for k in shared if _line(rows_a[k]) != _line(rows_b[k])), None)
    return RunDifference(
        options=_differing(_options(a.config), _options(b.config)),
        data=_differing(_data(a), _data(b)),
        software=_differing(_software(a.config), _software(b.config)),
        results=[(name, read(a), read(b)) for name, read in RESULTS.items()],
        equal_rounds=len(shared) if first is None else shared.index(first),
        shared_rounds=len(shared),
        first=[] if first is None else _differing(_line(rows_a[first]), _line(rows_b[first])),
        first_round=first,
    )


def _line(row: Row) -> dict[str, Any]:
    """Return the figures of a line as one table, without times."""
    return flat({key: value for key, value in row.line.items() if key not in TIMES})


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Pair]:
    return [
        (name, a.get(name), b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run by the names of the command line."""
    run_options = {
        flag_of(name): value
        for name, value in config.items()
        if name in OPTIONS and name not in (*UNUSED, "options") and OPTIONS[name].panel
    }
    return {"METHOD": config["method"]} | run_options | flat(config.get("options", {}))


def _data(run: Run) -> dict[str, Any]:
    about = run.config.get("data", {})
    digests = {"data": str(about.get("digest", ""))[:12]}
    if run.has_split:
        digests["split"] = run.split(0).hash[:12]
    files = run.config.get("files", {})
    return digests | {f"file of {name}": digest[:12] for name, digest in files.items()}


def _software(config: Mapping[str, Any]) -> dict[str, Any]:
    plugins = {
        f"{p['kind']} {p['name']}": f"{p['distribution']} {p['version']}, code {p.get('code', '?')}"
        for p in config.get("plugins", ())
    }
    facts = {**config.get("versions", {}), **config.get("machine", {})}
    return plugins | {key.replace("_", " "): value for key, value in facts.items()}


def _scored(run: Run, choose: Callable[[list[float]], float]) -> float | None:
    """Return the mean over trials of an accuracy that is chosen from the evaluated rounds."""
    each = [
        [row.test_accuracy for row in run.rows_of(trial, evaluated=True)] for trial in run.trials
    ]
    chosen = [
        choose([value for value in accuracies if value is not None])
        for accuracies in each
        if accuracies
    ]
    return statistics.fmean(chosen) if chosen else None


def _mean(run: Run, read: Callable[[Row], float | None]) -> float | None:
    values = [value for row in run.rows if (value := read(row)) is not None]
    return statistics.fmean(values) if values else None


RESULTS: dict[str, Callable[[Run], Any]] = {
    "state": lambda run: run.state,
    "rounds": lambda run: run.rounds_done,
    "best accuracy": lambda run: _scored(run, max),
    "final accuracy": lambda run: _scored(run, lambda values: values[-1]),
    "final loss": lambda run: run.rows[-1].train_loss if run.rows else None,
    "upload a round": lambda run: _mean(run, lambda row: row.upload_bytes),
    "download a round": lambda run: _mean(run, lambda row: row.download_bytes),
    "seconds a round": lambda run: _mean(run, lambda row: row.seconds["total"]),
}
"""{name: reader} of the results that are shown side by side."""

MEASURED = ("seconds a round",)
"""Results that differ between equal runs."""

"""The plan of a benchmark: finished, refused and remaining entries, and the estimated time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protofl.system.files.home import expand_user
from protofl_workbench.batch.run_batch import RunBatch
from protofl_workbench.batch.shard import WHOLE, Shard
from protofl_workbench.reproductions.benchmark.benchmark_execution import (
    BenchmarkCell,
    check_entries,
    is_own,
    recorded_entries,
    refusal,
)
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.reproduction import Reproduction


@dataclass(frozen=True)
class BenchmarkPlan:
    """The plan of a benchmark.

    Attributes:
        title: Title of the benchmark.
        search: The search, in words.
        finished: Entries with a record, by setting.
        refused: {(method, setting): reason}.
        failed: {(method, setting): error of planning that is not a refusal}.
        left: {(method, setting): estimated seconds with one host} of the entries to run, if no run
            ends early.
        runs: Number of runs of the entries to run.
    """

    title: str
    search: str
    finished: dict[str, int] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    left: dict[tuple[str, str], float] = field(default_factory=dict)
    runs: int = 0


def plan_benchmark(
    reproduction: Reproduction,
    change: Change | None = None,
    runs: str | Path = "runs",
    added: Sequence[str] = (),
    *,
    shard: Shard = WHOLE,
) -> BenchmarkPlan:
    """Plan a benchmark and measure the steps of each entry; nothing is trained.

    Raises:
        UsageError: A name or an option is wrong.
    """
    progress, todo = recorded_entries(reproduction, change or Change(), Path(runs), added)
    finished: dict[str, int] = {}
    for _, column in progress.records:
        finished[column] = finished.get(column, 0) + 1
    todo = [entry for entry in todo if is_own(progress, entry, shard)]
    refused, failed = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
    left, count = dict[tuple[str, str], float](), 0
    with RunBatch(expand_user(Path(runs))) as batch:
        for entry, checked in zip(todo, check_entries(todo, batch, measure=True), strict=True):
            key = entry.cell.row, entry.cell.column
            if reason := refusal(checked):
                refused[key] = reason
            elif checked.error is not None:
                failed[key] = checked.error.what
            else:
                left[key] = (checked.seconds or 0.0) * rounds_of(entry) / checked.rounds
                count += entry.runs
    tuning = progress.tuning
    search = (
        f"{tuning.candidates} candidates of {tuning.rounds} rounds with seed {tuning.seed}, then "
        f"seeds {', '.join(map(str, tuning.seeds))}"
    )
    heading = progress.reproduction.heading
    return BenchmarkPlan(heading, search, finished, refused, failed, left, count)


def rounds_of(entry: BenchmarkCell) -> int:
    """Return the largest number of rounds of all runs of an entry."""
    rounds = int(entry.cell.options["rounds"])
    tuning = entry.tuning
    return min(tuning.rounds, rounds) * tuning.candidates + rounds * len(tuning.seeds)

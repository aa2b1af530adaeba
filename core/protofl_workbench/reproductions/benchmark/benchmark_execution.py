"""Execution of a benchmark: the search and the final runs of each method in each setting.

A method in a setting is an entry. Its runs depend on each other: a step of the search needs the
ones before, and the final runs need the search. Entries are independent, so that several runs are
in progress at once. A finished entry has a record
(`protofl_workbench.reproductions.benchmark.benchmark_records`) and is not planned again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from protofl.errors import Diverged, ProtoflError, UsageError, unknown
from protofl.federation import events as of_rounds
from protofl.hooks.discovery.registry import installed
from protofl.system.files.home import expand_user
from protofl.system.options.plugin_options import Config
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.run_batch import RunBatch
from protofl_workbench.reproductions.benchmark.benchmark_records import (
    LOCAL,
    definition_of,
    environment_of,
    figures_of,
    file_of,
    folder_of,
    read_record,
    search_record,
    without_folder,
    write_record,
)
from protofl_workbench.reproductions.benchmark.candidates import (
    Candidate,
    Weight,
    best_candidate,
    next_candidates,
    validation_score,
    weight_of,
)
from protofl_workbench.reproductions.cells import Cell, Change, cells_of, merged
from protofl_workbench.reproductions.inventory import missing_inputs
from protofl_workbench.reproductions.reproduction import Reproduction, Tuning

Note = Callable[[str], None]
Record = dict[str, Any]


@dataclass(eq=False)
class BenchmarkCell:
    """A method in a setting, and the progress of its runs.

    Attributes:
        cell: Row, column, and options of the final runs.
        tuning: The search.
        weight: The main weight; None if the method has none.
        scale: Name of the scale.
        found: {candidate: {seed: validation accuracy}} of ended tuning runs; −∞ for diverged ones.
        batches: Mini-batches of all clients in a run; 0 before the runs are planned.
        best: The chosen candidate, after the search.
        finals: {seed: outcome} of the final runs.
        error: Error of a run that ends the entry.
    """

    cell: Cell
    tuning: Tuning
    weight: Weight | None
    scale: str = "paper"
    found: dict[Candidate, dict[int, float]] = field(default_factory=dict)
    batches: int = 0
    best: Candidate | None = None
    finals: dict[int, Outcome] = field(default_factory=dict)
    error: ProtoflError | None = None
    waiting: list[BatchRun] = field(default_factory=list)
    going: dict[BatchRun, tuple[Candidate | None, int]] = field(default_factory=dict)
    _planned: dict[BatchRun, tuple[Candidate | None, int]] = field(default_factory=dict)
    _searched: bool = False

    @property
    def definition(self) -> str:
        """Digest of everything that defines the runs."""
        return definition_of(self.cell, self.tuning, self.weight)

    @property
    def runs(self) -> int:
        """Number of runs, without candidates beyond the edges of the search."""
        candidates = len(self.tuning.rates) + len(self.tuning.factors) * (self.weight is not None)
        return candidates * len(self.tuning.search_seeds) + len(self.tuning.seeds)

    @property
    def scores(self) -> dict[Candidate, float]:
        """{candidate: mean validation accuracy over the seeds}; −∞ if a run diverged."""
        return {candidate: fmean(each.values()) for candidate, each in self.found.items()}

    @property
    def done(self) -> bool:
        """True if no further run will start."""
        return not self.waiting and not self.going and (self.error is not None or self._searched)

    def next(self) -> BatchRun | None:
        """Return the next run; None if there is none, or if running ones come first."""
        if not (self._searched or self.error or self.waiting or self.going):
            self._advance()
        if self.error is not None or not self.waiting:
            return None
        run = self.waiting.pop(0)
        self.going[run] = self._planned[run]
        return run

    def _advance(self) -> None:
        """Plan the next step of the search, or after it the final runs."""
        for candidate in next_candidates(self.tuning, self.weight, self.scores):
            for seed in self.tuning.search_seeds:
                name = f"lr={candidate.rate:g}"
                if candidate.weight is not None and self.weight is not None:
                    name += f" {self.weight.name}={candidate.weight:g}"
                options = self.options(candidate, seed)
                options.pop("measure", None)
                self._plan(f"{name} seed {seed}", options, (candidate, seed))
        if not self.waiting:
            self._searched, self.best = True, best_candidate(self.scores)
            if self.best is not None:
                for seed in self.tuning.seeds:
                    self._plan(f"seed {seed}", self.options(self.best, seed), (None, seed))

    def _plan(self, name: str, options: dict[str, Any], what: tuple[Candidate | None, int]) -> None:
        if self._planned:  # the first run has tried the hooks
            options["dry_run"] = False
        request = replace(self.cell, options=options).request()
        run = BatchRun(f"{self.cell.row}, {self.cell.column}: {name}", request)
        self._planned[run] = what
        self.waiting.append(run)

    def options(self, candidate: Candidate, seed: int) -> dict[str, Any]:
        """Return the options of a run."""
        return merged(merged(self.cell.options, candidate.options(self.weight)), {"seed": seed})

    def run_ended(self, outcome: Outcome) -> None:
        """Take the outcome of a run."""
        candidate, seed = self.going.pop(outcome.batch_run)
        diverged = isinstance(outcome.error, Diverged)
        if outcome.error is not None and not diverged:
            self.error, self.waiting = outcome.error, []
        elif candidate is not None:
            score = -math.inf if diverged else validation_score(outcome.run.rows)
            self.found.setdefault(candidate, {})[seed] = score
        else:
            self.finals[seed] = outcome

    def record(self) -> Record:
        """Return the record of an entry that has ended.

        A final run that diverged counts with its best round before, like any other: who trains with
        validation samples would keep that round, and a method that diverges does not leave the
        table. An entry that diverged is not repeated, because it would diverge again; one that
        failed in another way is.
        """
        finals = sorted(self.finals.items())
        scored = {seed: outcome for seed, outcome in finals if has_score(outcome)}
        record = base_record(self)
        record["batches"] = self.batches
        record["search"] = search_record(self.found)
        if self.best is not None:
            record["lr"] = self.best.rate
            if self.weight is not None:
                value = self.weight.value if self.best.weight is None else self.best.weight
                record["weight"] = {"name": self.weight.name, "value": value}
        if scored:
            record["runs"] = [
                {**figures_of(outcome.run), **({"diverged": True} if outcome.error else {})}
                for outcome in scored.values()
            ]
            record |= environment_of(next(iter(scored.values())).run)
        failed = [
            f"seed {seed} diverged before its first evaluation"
            for seed, _ in finals
            if seed not in scored
        ]
        if self.error is not None:
            failed = [self.error.what]
        elif self.best is None:
            failed = ["every run of the search diverged"]
        if failed:
            record |= {"failed": "; ".join(failed), "diverged": self.error is None}
        return record


def has_score(outcome: Outcome) -> bool:
    """Return True if a final run has a round with a validation accuracy."""
    return outcome.folder is not None and any(
        row.get("validation_accuracy") is not None for row in outcome.run.rows
    )


def base_record(entry: BenchmarkCell) -> Record:
    """Return the keys that every record has."""
    options = {**entry.cell.options, "dataset": without_folder(str(entry.cell.options["dataset"]))}
    dropped = ("data_dir", "device", "engine", "track")
    options = {key: value for key, value in options.items() if key not in dropped}
    return {
        "method": entry.cell.row,
        "setting": entry.cell.column,
        "scale": entry.scale,
        "definition": entry.definition,
        "options": options,
    }


class Entries:
    """Source of a batch: the runs of entries, those of earlier entries first.

    Args:
        entries: The entries.
        ended: Called with each entry that has ended.
    """

    def __init__(
        self, entries: Sequence[BenchmarkCell], ended: Callable[[BenchmarkCell], None]
    ) -> None:
        self._open, self._ended = [*entries], ended
        self._owners: dict[BatchRun, BenchmarkCell] = {}

    def next(self) -> BatchRun | None:
        """Return the next run that can start."""
        for entry in [*self._open]:
            if (run := entry.next()) is not None:
                self._owners[run] = entry
                return run
            self._close(entry)
        return None

    def run_ended(self, outcome: Outcome) -> None:
        """Pass an outcome to its entry."""
        entry = self._owners.pop(outcome.batch_run)
        entry.run_ended(outcome)
        self._close(entry)

    def _close(self, entry: BenchmarkCell) -> None:
        if entry.done and entry in self._open:
            self._open.remove(entry)
            self._ended(entry)


@dataclass
class BenchmarkProgress:
    """The records of a benchmark so far.

    Attributes:
        reproduction: The benchmark, with added rows.
        scale: Name of the scale.
        tuning: The search at this scale.
        rows: The selected rows.
        columns: The selected settings.
        records: {(row, column): record}.
        failed: {(row, column): error} of entries that failed in this call.
        missing: {column: why its data are missing}.
    """

    reproduction: Reproduction
    scale: str
    tuning: Tuning
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    failed: dict[tuple[str, str], ProtoflError] = field(default_factory=dict)
    missing: dict[str, UsageError] = field(default_factory=dict)


def with_added(reproduction: Reproduction, added: Sequence[str]) -> Reproduction:
    """Return a benchmark with further methods.

    Raises:
        UsageError: The reproduction is not a benchmark, or a method is not installed.
    """
    if not added:
        return reproduction
    if reproduction.tuning is None:
        raise UsageError(f"--add {added[0]}: {reproduction.name} is not a benchmark")
    known = {plugin.name for plugin in installed("method")}
    for name in added:
        if name not in known:
            raise unknown("method", name, known, "install its package: pip install -e FOLDER")
    return reproduction.with_rows(added)


def entries_of(
    reproduction: Reproduction, change: Change, added: Sequence[str] = ()
) -> tuple[BenchmarkProgress, list[BenchmarkCell]]:
    """Return the empty progress of a benchmark, and its entries row by row.

    Args:
        reproduction: The benchmark.
        change: Scale, rows, columns and other changes.
        added: Further methods. Without ``only`` they run alone, beside ``local``.

    Raises:
        UsageError: A name or an option is wrong.
    """
    reproduction = with_added(reproduction, added)
    assert reproduction.tuning is not None
    cells_of(reproduction, replace(change, only=()))  # finds wrong scales, data sets and files
    tuning = reproduction.tuning.at(change.scale)
    if change.trials is not None:
        tuning = tuning.model_copy(update={"seeds": tuning.seeds[: change.trials]})
    only = change.only or ((LOCAL, *added) if added else tuple(tuning.rows))
    cells = cells_of(reproduction, replace(change, only=tuple(dict.fromkeys(only)), trials=None))
    rows = tuple(dict.fromkeys(cell.row for cell in cells))
    columns = tuple(dict.fromkeys(cell.column for cell in cells))
    weights = {cell.row: _weight(cell, reproduction.tuning) for cell in cells}
    entries = [
        BenchmarkCell(cell, tuning.of(cell.column), weights[cell.row], change.scale)
        for cell in cells
    ]
    return BenchmarkProgress(reproduction, change.scale, tuning, rows, columns), entries


def _weight(cell: Cell, tuning: Tuning) -> Weight | None:
    """Return the main weight of a row."""
    request = cell.request()
    plugin = request.registry.load("method", str(request.options["method"]))
    config = getattr(plugin, "Config", Config)
    return weight_of(config, tuning.weights.get(cell.row), cell.row)


def run_benchmark(
    reproduction: Reproduction,
    change: Change | None = None,
    runs: str | Path = "reproductions",
    *,
    added: Sequence[str] = (),
    start: bool = True,
    skip_missing: bool = False,
    again: bool = False,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
    note: Note = lambda line: None,
    planned: Callable[[int], None] = lambda count: None,
) -> BenchmarkProgress:
    """Run the missing entries of a benchmark, and return the records of all selected entries.

    Args:
        reproduction: The benchmark.
        change: Scale, rows, columns and other changes.
        runs: Folder of runs and records; finished entries and runs are not repeated.
        added: Further methods. Without ``only`` they run alone, beside ``local``.
        start: False to only read records.
        skip_missing: True to leave out settings whose data are missing.
        again: True to repeat entries that diverged; other failed ones are always repeated.
        at_once: Number of parallel runs; None for one per core, 0 to run in this process.
        follow: Called with every event of the batch.
        note: Takes a line before each long step.
        planned: Takes the number of runs before any of them starts, refused ones included.

    Raises:
        UsageError: An entry cannot be run, or its data are missing; nothing has been started.
    """
    progress, todo = recorded_entries(
        reproduction, change or Change(), Path(runs), added, again=again
    )
    if not start:
        return progress
    own = _with_data(progress, todo, note, skip_missing=skip_missing)
    if own:
        note(f"planning {len(own)} methods in settings")
        planned(sum(entry.runs for entry in own))
        folder = folder_of(expand_user(Path(runs)), reproduction, progress.scale)
        _run(progress, own, folder, expand_user(Path(runs)), at_once, follow)
    return progress


def recorded_entries(
    reproduction: Reproduction,
    change: Change,
    runs: Path,
    added: Sequence[str] = (),
    *,
    again: bool = False,
) -> tuple[BenchmarkProgress, list[BenchmarkCell]]:
    """Return the progress of a benchmark with its records, and the entries without one.

    Raises:
        UsageError: A name or an option is wrong, or a record is damaged.
    """
    progress, entries = entries_of(reproduction, change, added)
    folder = folder_of(expand_user(runs), reproduction, progress.scale)
    todo = []
    for entry in entries:
        record = read_record(file_of(folder, entry.cell.column, entry.cell.row))
        if record is not None and record["definition"] == entry.definition:
            progress.records[entry.cell.row, entry.cell.column] = record
            if "failed" not in record or (record["diverged"] and not again):
                continue
        todo.append(entry)
    return progress, todo


def _with_data(
    progress: BenchmarkProgress, entries: list[BenchmarkCell], note: Note, *, skip_missing: bool
) -> list[BenchmarkCell]:
    """Return the entries whose data are here; data that can be downloaded are.

    Raises:
        UsageError: Data are missing, and nothing is left out.
    """
    for column in dict.fromkeys(entry.cell.column for entry in entries):
        of_column = [entry.cell for entry in entries if entry.cell.column == column]
        probe = of_column[0]
        options = merged(probe.options, {"method": LOCAL})  # needs no generator
        missing = missing_inputs([replace(probe, options=options)], note, fetch=True)
        if missing:
            error = next(iter(missing.values()))
            if not skip_missing:
                raise UsageError(f"{column}: {error.what}", error.near, error.do)
            progress.missing[column] = error
    return [entry for entry in entries if entry.cell.column not in progress.missing]


def check_entries(entries: Sequence[BenchmarkCell], batch: RunBatch) -> list[CheckedRun]:
    """Plan the first final run of each entry with the setting's own learning rate."""
    first = [BatchRun(f"{e.cell.row}, {e.cell.column}", e.cell.request()) for e in entries]
    return batch.check_all(first, only_plan=True)


def refusal(checked: CheckedRun) -> str:
    """Return why a method does not fit a setting; empty if it fits.

    A method refuses by an error of its planning. Other errors are not refusals.
    """
    error = checked.error
    if not isinstance(error, UsageError):
        return ""
    method = str(checked.batch_run.request.options.get("method"))
    return (error.near or error.what).splitlines()[0].removeprefix(f"{method}: ")


def _quieter(follow: events.Follow) -> events.Follow:
    """Return a follower without the notes about tuning runs that final runs do not reuse."""

    def quieter(event: events.Event) -> None:
        match event:
            case events.OfRun(event=of_rounds.Note(text)) if " is not reused: " in text:
                return
        follow(event)

    return quieter


def _run(
    progress: BenchmarkProgress,
    entries: Sequence[BenchmarkCell],
    folder: Path,
    runs: Path,
    at_once: int | None,
    follow: events.Follow,
) -> None:
    def ended(entry: BenchmarkCell) -> None:
        key = entry.cell.row, entry.cell.column
        if entry.error is not None:
            progress.failed[key] = entry.error
        progress.records[key] = record = entry.record()
        write_record(folder, record)

    group = progress.reproduction.name
    with RunBatch(
        runs, at_once=at_once, follow=_quieter(follow), group=group, repeat_diverged=False
    ) as batch:
        todo = []
        for entry, checked in zip(entries, check_entries(entries, batch), strict=True):
            key = entry.cell.row, entry.cell.column
            if reason := refusal(checked):
                progress.records[key] = record = {**base_record(entry), "refused": reason}
                write_record(folder, record)
            elif checked.error is not None:
                entry.error = checked.error
                ended(entry)
            else:
                entry.batches = checked.steps
                todo.append(entry)
        if not todo:
            return
        alike = [entry.cell.request() for entry in todo for _ in range(entry.runs)]
        batch.do(Entries(todo, ended), alike)

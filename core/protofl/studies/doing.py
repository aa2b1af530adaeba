"""A study, done: its cells as runs of a batch, accounts and formulas, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from protofl.batch import events
from protofl.batch.batch import Batch
from protofl.batch.tasks import mistakes
from protofl.batch.wanted import Outcome, Tried, Wanted
from protofl.errors import ProtoflError, UsageError
from protofl.studies.account import flops, plan_of, traffic
from protofl.studies.cells import Cell, Change, cells_of
from protofl.studies.figures import READERS, UNITS, figure_of, series, unit_of
from protofl.studies.formulas import evaluate, plain
from protofl.studies.looking import longest, whole
from protofl.studies.missing import check_here
from protofl.studies.places import place_of, placed
from protofl.studies.result import Entry, State, StudyResult, facts_of
from protofl.studies.study import Study

Note = Callable[[str], None]


@dataclass
class Done:
    """What is known of the cells of a study.

    Attributes:
        study: The study.
        change: What the user changed.
        cells: The cells that are wanted.
        missing: {`Cell.key`: what it lacks}.
        rows: {`Cell.key`: lines of its run or its account}.
        folders: {`Cell.key`: its run's folder}.
        failed: {`Cell.key`: why its run failed}.
        parts: {`Cell.key`: how far a run is that is not whole}.
        splits: {`Cell.key`: samples of each client and class, and the classes}.
    """

    study: Study
    change: Change
    cells: list[Cell]
    missing: dict[str, UsageError] = field(default_factory=dict)
    rows: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, ProtoflError] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def begun(cls, study: Study, change: Change) -> Done:
        """A study of which nothing is known yet."""
        return cls(study, change, cells_of(study, change))

    def to_run(self) -> list[Cell]:
        """The cells that runs make, one for each run."""
        return self._first(trains=True)

    def to_account(self) -> list[Cell]:
        """The cells that accounts make, one for each account."""
        return self._first(trains=False)

    def _first(self, *, trains: bool) -> list[Cell]:
        chosen = [c for c in self.cells if c.options and needs_run(self.study, c) == trains]
        found = {cell.key: cell for cell in reversed(chosen) if cell.key not in self.missing}
        return [*reversed(found.values())]


def needs_run(study: Study, cell: Cell) -> bool:
    """Whether a cell is made by a run; those of accounts are not."""
    if study.draw == "partition":
        return False
    return READERS[cell.figure.read].trains or study.kind != "account"


def do_study(
    study: Study,
    change: Change | None = None,
    runs: str | Path = "runs",
    *,
    start: bool = True,
    skip_missing: bool = False,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
    note: Note = lambda line: None,
) -> StudyResult:
    """Do what a study lacks, and put ours beside the published figures.

    Args:
        study: The study.
        change: Scale, selection, and what else is changed.
        runs: The folder of runs; what is there is not repeated.
        start: Whether runs are started, which those of an account never are; otherwise only those
            that are there are read.
        skip_missing: Whether cells whose data or weights lack are left empty.
        at_once: Runs that are done at once; None as many as there are cores, 0 in this process.
        follow: Called with every event of the batch.
        note: Takes lines about what takes long.

    Raises:
        UsageError: A cell can't be run, or its data or weights lack; nothing has been started.
    """
    done = Done.begun(study, change or Change())
    start = start and study.kind != "account"
    found = check_here(done.to_run(), note, fetch=start)
    accounts = check_here(done.to_account(), note, fetch=start, account=True)
    found |= accounts
    if (accounts or (start and found)) and not skip_missing:
        raise missing_error(done, found)
    done.missing |= found
    if start:
        _run(done, Path(runs), at_once, follow)
    else:
        _look_up(done, Path(runs), note)
    for cell in done.to_account():
        note(f"counting {cell.name}")
        if study.draw == "partition":
            with placed(study, cell):
                done.splits[cell.key] = _split_of(cell)
            continue
        count = flops if READERS[cell.figure.read].measure == "flops" else traffic
        with placed(study, cell):
            done.rows[cell.key] = count(cell.request())
    return result_of(done)


def _split_of(cell: Cell) -> tuple[np.ndarray, tuple[str, ...]]:
    """Samples [M, C] of each client and class, and the classes."""
    plan = plan_of(cell.request())
    train, test = plan.split(0).counts(plan.data.y, plan.data.num_classes)
    return (train + test).numpy(), tuple(plan.data.classes)


def missing_error(done: Done, found: Mapping[str, UsageError]) -> UsageError:
    """The error for cells whose data or weights lack: the first one's, and how many there are."""
    first = next(iter(found.values()))
    names = [cell.name for cell in done.cells if cell.options and cell.key in found]
    more = f" and {len(names) - 3} more cells" if len(names) > 3 else ""
    near = f"wanted by {'; '.join(names[:3])}{more}"
    return UsageError(first.what, "; ".join(p for p in (first.near, near) if p), first.do)


def _run(done: Done, runs: Path, at_once: int | None, follow: events.Follow) -> None:
    if done.change.rounds is not None:
        _look_up(done, runs, lambda line: None)
    cells = [cell for cell in done.to_run() if cell.key not in done.rows]
    done.parts.clear()
    wanted = [Wanted(cell.name, cell.request()) for cell in cells]
    if not wanted:
        return
    with Batch(runs, at_once=at_once, follow=follow) as batch:
        tried: list[Tried] = batch.try_all(wanted)
        if (wrong := mistakes(tried)) is not None:
            first = next(i for i, one in enumerate(tried) if one.error is not None)
            wrong.what = f"{place_of(done.study, cells[first], wrong.what)}{wrong.what}"
            raise wrong
        outcomes: list[Outcome] = batch.do_all(tried)
    for cell, outcome in zip(cells, outcomes, strict=True):
        if outcome.error is not None:
            done.failed[cell.key] = outcome.error
        elif outcome.folder is not None:
            done.rows[cell.key] = outcome.run.rows
            done.folders[cell.key] = outcome.folder


def _look_up(done: Done, runs: Path, note: Note) -> None:
    for cell in done.to_run():
        note(f"looking for {cell.name}")
        with placed(done.study, cell):
            run = whole(cell, runs)
        if run is not None:
            done.rows[cell.key], done.folders[cell.key] = run.rows, run.folder
        elif (part := longest(cell.request(), runs)) is not None:
            done.folders[cell.key] = part.folder
            asked = (cell.rounds or part.config["rounds"]) * cell.options.get("trials", 1)
            done.parts[cell.key] = f"{part.rounds_done} of {asked} rounds are there"


# --- what came of it ------------------------------------------------------------------------------


def result_of(done: Done) -> StudyResult:
    """What is known of a study's cells as a table."""
    study, change = done.study, done.change
    entries = {(c.row, c.column): _entry(done, c) for c in done.cells}
    # Formulas may stand on others.
    for cell in [c for c in done.cells if c.figure.read == "formula" and not c.empty] * 2:
        entries[cell.row, cell.column] = _by_formula(study, cell, entries)
    variant = study.variant if change.variant is None else change.variant
    options = [c.options for c in done.cells if c.options and needs_run(study, c)]
    usual = Change(change.scale, change.variant, change.only, change.columns)
    before = [c.options for c in cells_of(study, usual) if c.options and needs_run(study, c)]
    return StudyResult(
        study,
        tuple(dict.fromkeys(cell.row for cell in done.cells)),
        tuple(dict.fromkeys(cell.column for cell in done.cells)),
        entries,
        change.scale,
        facts_of(study, change.scale, variant, options, before),
    )


def _entry(done: Done, cell: Cell) -> Entry:
    state: State = "not run"
    why, rows = done.parts.get(cell.key, ""), done.rows.get(cell.key, ())
    text = done.study.published.get((cell.row, cell.column), "")
    values: tuple[float, ...] = ()
    curve: dict[int, list[tuple[int, float]]] = {}
    if cell.empty:
        state = "empty"
    elif cell.key in done.missing:
        state, why = "missing", done.missing[cell.key].what
    elif cell.key in done.failed:
        state, why = "failed", done.failed[cell.key].what
    elif cell.key in done.splits:
        counts, _ = done.splits[cell.key]
        state, values = "done", (float((counts > 0).sum(1).mean()),)
    elif rows:
        rounds = cell.rounds if needs_run(done.study, cell) else None
        found = figure_of(rows, cell.figure, rounds)
        values = tuple(value for value in found if value is not None)
        state = "done" if len(values) == len(found) else "not reached"
        if not values and state == "not reached" and not READERS[cell.figure.read].needs_target:
            why = f"the run's record has no {cell.figure.of or READERS[cell.figure.read].of}"
        values = values if state == "done" else ()
        curve = _curves(rows, cell) if done.study.kind == "curves" else {}
    return Entry(
        cell.row,
        cell.column,
        state,
        cell.figure,
        values,
        text,
        cell.rounds,
        curve,
        done.splits.get(cell.key),
        done.folders.get(cell.key),
        why,
    )


def _curves(rows: Sequence[Mapping[str, Any]], cell: Cell) -> dict[int, list[tuple[int, float]]]:
    one, found = UNITS[unit_of(cell.figure)], dict[int, list[tuple[int, float]]]()
    for trial in sorted({row["trial"] for row in rows}):
        until = cell.rounds or math.inf
        own = [row for row in rows if row["trial"] == trial and row["round"] < until]
        found[trial] = [(n, v / one) for n, v in series(sorted(own, key=_round), cell.figure)]
    return found


def _round(row: Mapping[str, Any]) -> int:
    return int(row["round"])


def _by_formula(study: Study, cell: Cell, entries: Mapping[tuple[str, str], Entry]) -> Entry:
    """A cell by arithmetic over constants, and over other cells of its column or its row."""
    names: dict[str, float] = {plain(key): value for key, value in study.constants.items()}
    for row, line in study.rows.items():  # of rows too that are not wanted
        if line.formula and row != cell.row:
            with suppress(UsageError):
                names[plain(row)] = evaluate(line.formula, study.constants)
    beside: dict[str, Entry] = {}
    for (row, column), entry in entries.items():
        if column == cell.column and row != cell.row and study.rows[cell.row].formula:
            beside[plain(row)] = entry
        elif row == cell.row and column != cell.column and not study.rows[cell.row].formula:
            beside[plain(column)] = entry
    for name, entry in beside.items():
        if entry.mean is not None:
            names[name] = entry.mean * UNITS[unit_of(entry.figure)]
    text = study.published.get((cell.row, cell.column), "")
    try:
        value = evaluate(cell.formula, names) / UNITS[unit_of(cell.figure)]
    except UsageError:  # a cell that it needs is empty
        return Entry(cell.row, cell.column, "not run", cell.figure, text=text)
    return Entry(cell.row, cell.column, "done", cell.figure, (value,), text)

"""Entries of a reproduction's table, computed from the records of runs and accounts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from protofl.errors import Diverged
from protofl.records.row import Row
from protofl_workbench.recorded.recorded_run import load_run
from protofl_workbench.reproductions.cells import Cell, Change, cells_of
from protofl_workbench.reproductions.inventory import ReproductionProgress, needs_run
from protofl_workbench.reproductions.reproduction_figures import (
    READERS,
    UNITS,
    figure_of,
    series,
    unit_of,
)
from protofl_workbench.reproductions.reproduction_result import (
    CellResult,
    ReproductionResult,
    State,
    conditions_of,
    facts_of,
)


def result_of(progress: ReproductionProgress) -> ReproductionResult:
    """Return the result of a reproduction so far."""
    reproduction, change = progress.reproduction, progress.change
    entries = {(c.row, c.column): _entry(progress, c) for c in progress.cells}
    variant = reproduction.variant if change.variant is None else change.variant
    options = [c.options for c in progress.cells if c.options and needs_run(reproduction, c)]
    return ReproductionResult(
        reproduction,
        tuple(dict.fromkeys(cell.row for cell in progress.cells)),
        tuple(dict.fromkeys(cell.column for cell in progress.cells)),
        entries,
        change.scale,
        facts_of(reproduction, change.scale, variant, options),
        _conditions(progress),
    )


def _conditions(progress: ReproductionProgress) -> str:
    """Return which conditions of the runs are not those of the published figures."""
    reproduction, change = progress.reproduction, progress.change
    if not reproduction.published or "paper" not in reproduction.scales:
        return ""
    usual = Change("paper", change.variant, change.only, change.columns)
    theirs = {(c.row, c.column): c for c in cells_of(reproduction, usual)}
    pairs = [(c, theirs[c.row, c.column]) for c in progress.cells if c.options]
    pairs = [
        (ours, paper) for ours, paper in pairs if needs_run(reproduction, ours) and paper.options
    ]
    return conditions_of([ours.options for ours, _ in pairs], [paper.options for _, paper in pairs])


def _entry(progress: ReproductionProgress, cell: Cell) -> CellResult:
    key, reproduction, reader = cell.key, progress.reproduction, READERS[cell.figure.read]
    rows = progress.rows.get(key, ())
    entry = CellResult(
        cell.row,
        cell.column,
        "not run",
        cell.figure,
        text=reproduction.published.get((cell.row, cell.column), ""),
        rounds=cell.rounds,
        split=progress.splits.get(key),
        folder=progress.folders.get(key),
        why=progress.parts.get(key, ""),
    )
    if cell.empty:
        return replace(entry, state="empty")
    if key in progress.missing:
        return replace(entry, state="missing", why=progress.missing[key].what)
    curve = _curves(rows, cell) if reproduction.kind == "curves" else {}
    if key in progress.failed:
        partial, values = _finished(progress, cell, rows) if rows else ("", ())
        state: State = "broken off" if partial else "failed"
        why = progress.failed[key].what
        entry = replace(entry, state=state, values=values, why=why, partial=partial)
        return replace(entry, curve=curve if partial else {})
    if entry.split is not None:
        return replace(entry, state="done", values=(float((entry.split[0] > 0).sum(1).mean()),))
    if not rows:
        return entry
    figures = figure_of(rows, cell.figure, cell.rounds if needs_run(reproduction, cell) else None)
    values = tuple(value for value in figures if value is not None)
    if len(values) == len(figures):
        return replace(entry, state="done", values=values, curve=curve)
    if not values and not reader.needs_target:
        entry = replace(entry, why=f"the run's record has no {cell.figure.of or reader.of}")
    return replace(entry, state="not reached", curve=curve)


def _finished(
    progress: ReproductionProgress, cell: Cell, rows: Sequence[Row]
) -> tuple[str, tuple[float, ...]]:
    """Describe the finished part of a failed run, and return its figures.

    If some trials are complete, the figures are of these only.
    """
    rounds = cell.rounds or int(load_run(progress.folders[cell.key]).config["rounds"])
    trials, count = int(cell.options.get("trials", 1)), Counter(row.trial for row in rows)
    whole = [trial for trial in sorted(count) if count[trial] >= rounds]
    how = "diverged" if isinstance(progress.failed[cell.key], Diverged) else "failed"
    last = f"{count[len(whole)]} of {rounds} rounds"
    if whole:
        description = f"{len(whole)} of {trials} trials, the next {how} after {last}"
    else:
        description = f"{last}{f' of the first of {trials} trials' if trials > 1 else ''}, {how}"
    counted = [row for row in rows if row.trial in (whole or count)]
    figures = figure_of(counted, cell.figure, rounds)
    values = tuple(value for value in figures if value is not None)
    if len(values) < len(figures):  # the target was not reached, or no round has the figure
        return (description, ()) if READERS[cell.figure.read].needs_target else ("", ())
    return description, values


def _curves(rows: Sequence[Row], cell: Cell) -> dict[int, list[tuple[int, float]]]:
    one, result = UNITS[unit_of(cell.figure)], dict[int, list[tuple[int, float]]]()
    for trial in sorted({row.trial for row in rows}):
        until = cell.rounds or math.inf
        trial_rows = [row for row in rows if row.trial == trial and row.round < until]
        trial_rows.sort(key=lambda row: row.round)
        result[trial] = [(n, v / one) for n, v in series(trial_rows, cell.figure)]
    return result

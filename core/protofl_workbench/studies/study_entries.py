"""The cells of a study as entries of a table, from the lines of runs and accounts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from protofl.errors import Diverged, UsageError
from protofl.records.row import Row
from protofl.runs.recorded_run import load_run
from protofl_workbench.studies.cells import Cell, Change, cells_of
from protofl_workbench.studies.inventory import StudyProgress, needs_run
from protofl_workbench.studies.study import Study
from protofl_workbench.studies.study_figures import (
    READERS,
    UNITS,
    evaluate,
    figure_of,
    names_in,
    plain,
    series,
    unit_of,
)
from protofl_workbench.studies.study_result import Entry, State, StudyResult, facts_of


def result_of(progress: StudyProgress) -> StudyResult:
    """Return the result of a study so far."""
    study, change = progress.study, progress.change
    entries = {(c.row, c.column): _entry(progress, c) for c in progress.cells}
    # Formulas may stand on others.
    for cell in [c for c in progress.cells if c.figure.read == "formula" and not c.empty] * 2:
        entries[cell.row, cell.column] = _by_formula(study, cell, entries)
    variant = study.variant if change.variant is None else change.variant
    options = [c.options for c in progress.cells if c.options and needs_run(study, c)]
    usual = Change(change.scale, change.variant, change.only, change.columns)
    before = [c.options for c in cells_of(study, usual) if c.options and needs_run(study, c)]
    return StudyResult(
        study,
        tuple(dict.fromkeys(cell.row for cell in progress.cells)),
        tuple(dict.fromkeys(cell.column for cell in progress.cells)),
        entries,
        change.scale,
        facts_of(study, change.scale, variant, options, before),
    )


def _entry(progress: StudyProgress, cell: Cell) -> Entry:
    state: State = "not run"
    why, rows = progress.parts.get(cell.key, ""), progress.rows.get(cell.key, ())
    partial = ""
    text = progress.study.published.get((cell.row, cell.column), "")
    values: tuple[float, ...] = ()
    curve: dict[int, list[tuple[int, float]]] = {}
    if cell.empty:
        state = "empty"
    elif cell.key in progress.missing:
        state, why = "missing", progress.missing[cell.key].what
    elif cell.key in progress.failed:
        why = progress.failed[cell.key].what
        partial, values = _finished(progress, cell, rows) if rows else ("", ())
        state = "broken off" if partial else "failed"
        curve = _curves(rows, cell) if partial and progress.study.kind == "curves" else {}
    elif cell.key in progress.splits:
        counts, _ = progress.splits[cell.key]
        state, values = "done", (float((counts > 0).sum(1).mean()),)
    elif rows:
        rounds = cell.rounds if needs_run(progress.study, cell) else None
        found = figure_of(rows, cell.figure, rounds)
        values = tuple(value for value in found if value is not None)
        state = "done" if len(values) == len(found) else "not reached"
        if not values and state == "not reached" and not READERS[cell.figure.read].needs_target:
            why = f"the run's record has no {cell.figure.of or READERS[cell.figure.read].of}"
        values = values if state == "done" else ()
        curve = _curves(rows, cell) if progress.study.kind == "curves" else {}
    return Entry(
        cell.row,
        cell.column,
        state,
        cell.figure,
        values,
        text,
        cell.rounds,
        curve,
        progress.splits.get(cell.key),
        progress.folders.get(cell.key),
        why,
        partial,
    )


def _finished(
    progress: StudyProgress, cell: Cell, rows: Sequence[Row]
) -> tuple[str, tuple[float, ...]]:
    """Describe the finished part of a failed run, and return its figures.

    Of whole trials, where there are some: the figure of one that broke off is no figure of theirs.
    """
    rounds = cell.rounds or int(load_run(progress.folders[cell.key]).config["rounds"])
    trials, count = int(cell.options.get("trials", 1)), Counter(row.trial for row in rows)
    whole = [trial for trial in sorted(count) if count[trial] >= rounds]
    how = "diverged" if isinstance(progress.failed[cell.key], Diverged) else "failed"
    far = f"{count[len(whole)]} of {rounds} rounds"
    if whole:
        words = f"{len(whole)} of {trials} trials, the next {how} after {far}"
    else:
        words = f"{far}{f' of the first of {trials} trials' if trials > 1 else ''}, {how}"
    counted = [row for row in rows if row.trial in (whole or count)]
    found = figure_of(counted, cell.figure, rounds)
    values = tuple(value for value in found if value is not None)
    if len(values) < len(found):  # not reached, or in none of these rounds
        return (words, ()) if READERS[cell.figure.read].needs_target else ("", ())
    return words, values


def _curves(rows: Sequence[Row], cell: Cell) -> dict[int, list[tuple[int, float]]]:
    one, found = UNITS[unit_of(cell.figure)], dict[int, list[tuple[int, float]]]()
    for trial in sorted({row.trial for row in rows}):
        until = cell.rounds or math.inf
        own = [row for row in rows if row.trial == trial and row.round < until]
        found[trial] = [(n, v / one) for n, v in series(sorted(own, key=_round), cell.figure)]
    return found


def _round(row: Row) -> int:
    return int(row.round)


def _by_formula(study: Study, cell: Cell, entries: Mapping[tuple[str, str], Entry]) -> Entry:
    """Compute a cell from constants and from other cells of its column or row."""
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
        if entry.mean is not None and not entry.partial:
            names[name] = entry.mean * UNITS[unit_of(entry.figure)]
    text = study.published.get((cell.row, cell.column), "")
    try:
        value = evaluate(cell.formula, names) / UNITS[unit_of(cell.figure)]
    except UsageError:  # a cell that it needs is empty, or not of all rounds
        short = [name for name in names_in(cell.formula) & {*beside} if beside[name].partial]
        why = f"{', '.join(sorted(short))}: not of all rounds" if short else ""
        return Entry(cell.row, cell.column, "not run", cell.figure, text=text, why=why)
    return Entry(cell.row, cell.column, "done", cell.figure, (value,), text)

"""Studies from Python: find one, do its runs, compare its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.runs.recorded_run import Run
from protofl_workbench.batch import batch_events as events
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.figure_table import FigureTable
from protofl_workbench.studies.cells import Change
from protofl_workbench.studies.finding import find_study
from protofl_workbench.studies.inventory import StudyProgress, finished_run, missing_inputs
from protofl_workbench.studies.study import Study
from protofl_workbench.studies.study_execution import run_study
from protofl_workbench.studies.study_result import StudyResult


def compare_study(
    study: Study,
    change: Change | None = None,
    runs: str | Path = "runs",
    note: Callable[[str], None] = lambda line: None,
    **given: Any,  # noqa: ANN401 - as `compare` takes them
) -> Comparison:
    """Compare the rows of a study in each of its columns, by the runs that are there.

    Args:
        study: The study.
        change: Scale, rows and columns, and what else is changed.
        runs: The folder of runs; nothing is started.
        note: Takes lines about what takes long.
        **given: As `compare` takes them; ``figures``, ``target``, ``baseline`` (a row) and so on.

    Raises:
        UsageError: In no column are there runs of two rows, or they can't be compared.
    """
    there, lacking = study_runs(study, change or Change(), Path(runs), note)
    columns = list(dict.fromkeys(column for _, column in there))
    tables: list[FigureTable] = []
    notes = [f"{len(lacking)} runs are not there: {_few(lacking)}"] if lacking else []
    paired, shown = True, tuple[str, ...]()
    base = _row_named(study, given.pop("baseline", ""))
    for column in columns:
        rows = {row: run for (row, own), run in there.items() if own == column}
        if len(rows) < 2:
            notes.append(f"{column or study.name}: there is nothing to compare {min(rows)} with")
            continue
        # The first row is the baseline of a column that lacks the one that is named.
        found = compare(rows, baseline=base if base in rows else "", **given)
        title = ", ".join(filter(None, (study.name, column)))
        tables += [replace(table, setting=title) for table in found.tables]
        notes += [line for line in found.notes if line not in notes]
        paired, shown = found.paired, found.shown
    if not tables:
        raise UsageError(
            f"{study.name}: in no column are there runs of two rows in {runs}",
            f"not there: {_few(lacking)}" if lacking else "",
            f"do them with protofl reproduce {study.name}, or give their folder with --runs",
        )
    return Comparison(tuple(tables), tuple(notes), paired, shown)


def study_runs(
    study: Study, change: Change, runs: Path, note: Callable[[str], None] = lambda line: None
) -> tuple[dict[tuple[str, str], Run], list[str]]:
    """The runs of a study that are whole, by row and column, and the cells without one.

    Args:
        study: The study.
        change: What the user changed.
        runs: The folder of runs.
        note: Takes lines about what takes long.
    """
    progress = StudyProgress.of(study, change)
    wanted = {cell.key: cell for cell in progress.to_run()}
    absent = missing_inputs([*wanted.values()], note, fetch=False)
    found: dict[str, Run | None] = {}
    for key, cell in wanted.items():
        note(f"looking for {cell.name}")
        found[key] = None if key in absent else finished_run(cell, runs)
    cells = [cell for cell in progress.cells if cell.options and cell.key in wanted]
    there = {(c.row, c.column): run for c in cells if (run := found[c.key]) is not None}
    return there, [cell.name for cell in cells if found[cell.key] is None]


def _row_named(study: Study, name: str) -> str:
    """The row that is meant, by its name in any letters; empty where none is named.

    Raises:
        UsageError: There is none.
    """
    of = {row.lower(): row for row in study.rows}
    if name and name.lower() not in of:
        raise unknown("baseline", name, study.rows, "give the name of a row")
    return of[name.lower()] if name else ""


def _few(names: list[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def study(name: str) -> Study:
    """A table or figure of a paper as data: rows, columns, options, what was published.

    Args:
        name: ``COLLECTION/NAME`` as ``protofl reproduce --list`` has it, or ``FILE.toml``.

    Raises:
        UsageError: There is none of that name, or its file is none of a study.

    Examples:
        >>> pf.study("fedtgp/table-10").published["fedtgp", "practical"]
        '97.58±0.05'
    """
    return find_study(name)


def reproduce(
    study: str | Study,
    *,
    scale: str = "paper",
    variant: str | None = None,
    only: Sequence[str] = (),
    columns: Sequence[str] = (),
    rounds: int | None = None,
    trials: int | None = None,
    datasets: Mapping[str, str] | None = None,
    files: Mapping[str, str | Path] | None = None,
    runs: str | Path = "runs",
    start: bool = True,
    skip_missing: bool = False,
    again: bool = False,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
    **options: Any,  # noqa: ANN401 - as `protofl.run` takes them
) -> StudyResult:
    """Do a study's runs, as ``protofl reproduce`` does, and put ours beside the published figures.

    Args:
        study: Its name, its file, or itself.
        scale: ``paper``, or a smaller one of the study's.
        variant: ``official`` for the published code's behaviour, ``paper`` for the equations; None
            for what is usual in the study.
        only: Rows; all where none is named.
        columns: Columns; all where none is named.
        rounds: Rounds of every run; None as the study says.
        trials: Trials of every run; None as the study says.
        datasets: {data set of the study: what takes its place}, ``{"cifar10": "npz:FILE"}``.
        files: {file of the study: where it is}, such as a generator's weights.
        runs: The folder of runs; what is there is not repeated.
        start: Whether runs are started; otherwise only those that are there are read.
        skip_missing: Whether cells whose data or weights lack are left empty.
        again: Whether runs are done again that diverged before, though nothing has changed since.
        at_once: Runs that are done at once; None as many as there are cores, 0 in this process.
        follow: Called with every event of the runs (`protofl_workbench.batch.batch_events`).
        **options: Further options of all runs, as `protofl.run` takes them.

    Returns:
        The table: ``result["fedtgp", "practical"]`` is a cell with ``mean``, ``std``,
        ``published`` and ``difference``; ``result.records()`` and ``result.frame()`` have all.

    Raises:
        UsageError: A cell can't be run, or its data or weights lack; nothing has been started.
    """
    found = find_study(study) if isinstance(study, str) else study
    change = Change(
        scale=scale,
        variant=variant,
        only=tuple(only),
        columns=tuple(columns),
        rounds=rounds,
        trials=trials,
        datasets=dict(datasets or {}),
        files={name: str(path) for name, path in (files or {}).items()},
        options=options,
    )
    return run_study(
        found,
        change,
        runs,
        start=start,
        skip_missing=skip_missing,
        again=again,
        at_once=at_once,
        follow=follow,
    )

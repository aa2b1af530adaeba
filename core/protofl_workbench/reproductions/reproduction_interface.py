"""Reproductions from Python: `protofl.reproduction`, `protofl.reproduce`, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofl.errors import UsageError, unknown
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.shard import Shard
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.figure_table import FigureTable
from protofl_workbench.comparing.run_groups import new_labels, places_in
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import find_reproduction
from protofl_workbench.reproductions.inventory import (
    ReproductionProgress,
    check_is_no_benchmark,
    finished_run,
    missing_inputs,
)
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_execution import run_reproduction
from protofl_workbench.reproductions.reproduction_result import ReproductionResult


def compare_reproduction(
    reproduction: Reproduction,
    change: Change | None = None,
    runs: str | Path = "runs",
    note: Callable[[str], None] = lambda line: None,
    **arguments: Any,  # noqa: ANN401 - as `compare` takes them
) -> Comparison:
    """Compare the rows of a reproduction in each of its columns, from existing runs.

    Args:
        reproduction: The reproduction.
        change: Scale, rows, columns and other changes.
        runs: The folder of runs; nothing is started.
        note: Takes a line before each long step.
        **arguments: Arguments of `protofl.compare`; ``baseline`` is a row.

    Raises:
        UsageError: No column has runs of two rows, or they cannot be compared.
    """
    found_runs, lacking = reproduction_runs(reproduction, change or Change(), Path(runs), note)
    columns = list(dict.fromkeys(column for _, column in found_runs))
    tables: list[FigureTable] = []
    notes = [f"{len(lacking)} runs are missing: {_few(lacking)}"] if lacking else []
    paired, shown, test = True, tuple[str, ...](), ""
    base = _row_named(reproduction, arguments.pop("baseline", ""))
    labels = new_labels(arguments.pop("labels", ()), reproduction.rows)
    order = arguments.pop("order", "")
    places = places_in(reproduction.rows, order, labels, notes) if order else {}
    for column in columns:
        rows = {row: run for (row, run_column), run in found_runs.items() if run_column == column}
        if len(rows) < 2:
            notes.append(f"{column or reproduction.name}: nothing to compare {min(rows)} with")
            continue
        # A column without the named baseline is compared with the default one.
        column_labels = {row: text for row, text in labels.items() if row in rows}
        comparison = compare(
            rows,
            baseline=base if base in rows else "",
            labels=column_labels,
            order=[row for row in places if row in rows],
            **arguments,
        )
        title = ", ".join(filter(None, (reproduction.name, column)))
        tables += [replace(table, setting=title) for table in comparison.tables]
        notes += [line for line in comparison.notes if line not in notes]
        paired, shown, test = comparison.paired, comparison.shown, comparison.test
    if not tables:
        raise UsageError(
            f"{reproduction.name}: no column has runs of two rows in {runs}",
            f"missing: {_few(lacking)}" if lacking else "",
            f"start them: protofl reproduce {reproduction.name}; or give their folder: --runs",
        )
    return Comparison(tuple(tables), tuple(notes), paired, shown, test)


def reproduction_runs(
    reproduction: Reproduction,
    change: Change,
    runs: Path,
    note: Callable[[str], None] = lambda line: None,
) -> tuple[dict[tuple[str, str], Run], list[str]]:
    """Return the finished runs of a reproduction by row and column, and the cells without a run."""
    check_is_no_benchmark(reproduction)
    progress = ReproductionProgress.of(reproduction, change)
    selected = {cell.key: cell for cell in progress.to_run()}
    absent = missing_inputs([*selected.values()], note, fetch=False)
    runs_by_key: dict[str, Run | None] = {}
    for key, cell in selected.items():
        note(f"looking for {cell.name}")
        runs_by_key[key] = None if key in absent else finished_run(cell, runs)
    cells = [cell for cell in progress.cells if cell.options and cell.key in selected]
    there = {(c.row, c.column): run for c in cells if (run := runs_by_key[c.key]) is not None}
    return there, [cell.name for cell in cells if runs_by_key[cell.key] is None]


def _row_named(reproduction: Reproduction, name: str) -> str:
    """Return the row with a name, ignoring case; empty for an empty name.

    Raises:
        UsageError: There is no such row.
    """
    of = {row.lower(): row for row in reproduction.rows}
    if name and name.lower() not in of:
        raise unknown("baseline", name, reproduction.rows, "give the name of a row")
    return of[name.lower()] if name else ""


def _few(names: list[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def reproduction(name: str) -> Reproduction:
    """Return a table or figure of a paper: rows, columns, options and published figures.

    Args:
        name: ``COLLECTION/NAME`` from ``protofl reproduce --list``, or ``FILE.toml``.

    Raises:
        UsageError: There is no such reproduction, or the file is not a reproduction.

    Examples:
        >>> pf.reproduction("fedtgp/table-10").published["fedtgp", "practical"]
        '97.58±0.05'
    """
    return find_reproduction(name)


def reproduce(
    reproduction: str | Reproduction,
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
    shard: str | None = None,
    follow: events.Follow = events.ignore,
    **options: Any,  # noqa: ANN401 - as `protofl.run` takes them
) -> ReproductionResult:
    """Run a reproduction as ``protofl reproduce`` does; compare with the published figures.

    Args:
        reproduction: The reproduction, its name, or its file.
        scale: ``paper``, or a smaller scale of the reproduction.
        variant: ``official`` (published code) or ``paper`` (equations); None: the reproduction's
            default.
        only: Selected rows; empty for all.
        columns: Selected columns; empty for all.
        rounds: Rounds of every run; None for the reproduction's numbers.
        trials: Trials of every run; None for the reproduction's numbers.
        datasets: {data set of the reproduction: replacement}: ``{"cifar10": "npz:FILE"}``.
        files: {file of the reproduction: path}, such as a generator's weights.
        runs: Folder of runs; finished runs are not repeated.
        start: False to only read existing runs.
        skip_missing: True to leave cells empty if their data or weights are missing.
        again: True to repeat runs that diverged before, although nothing has changed since.
        at_once: Number of parallel runs; None for one per core, 0 to run in this process.
        shard: ``I/N`` to start every N-th run only, beginning with the I-th; None for all. The
            result also has the finished runs of other shards.
        follow: Called with every event of the runs (`protofl_workbench.batch.batch_events`).
        **options: Further options of all runs, as for `protofl.run`.

    Returns:
        The table. ``result["fedtgp", "practical"]`` is a cell with ``mean``, ``std``,
        ``published`` and ``difference``; ``result.frame()`` has all cells.

    Raises:
        UsageError: A cell cannot be run, or its data are missing; nothing has been started.
    """
    change = Change(
        scale,
        variant,
        rounds=rounds,
        trials=trials,
        only=tuple(only),
        columns=tuple(columns),
        datasets=dict(datasets or {}),
        files={name: str(path) for name, path in (files or {}).items()},
        options=options,
    )
    loaded = find_reproduction(reproduction) if isinstance(reproduction, str) else reproduction
    how: dict[str, Any] = {"start": start, "skip_missing": skip_missing, "again": again}
    how["shard"] = Shard.read(shard)
    return run_reproduction(loaded, change, runs, at_once=at_once, follow=follow, **how)

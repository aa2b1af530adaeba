"""Reproductions from Python: `protofl.reproduction` and `protofl.reproduce`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl_workbench.batch import batch_events as events
from protofl_workbench.reproductions.cells import Change
from protofl_workbench.reproductions.finding import find_reproduction
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_execution import run_reproduction
from protofl_workbench.reproductions.reproduction_result import ReproductionResult


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
    runs: str | Path = "reproductions",
    start: bool = True,
    skip_missing: bool = False,
    again: bool = False,
    at_once: int | None = None,
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
    return run_reproduction(loaded, change, runs, at_once=at_once, follow=follow, **how)

"""Studies from Python: `study` finds one, `reproduce` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.batch import events
from protofl.studies.cells import Change
from protofl.studies.doing import do_study
from protofl.studies.finding import find_study
from protofl.studies.result import StudyResult
from protofl.studies.study import Study


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
        follow: Called with every event of the runs (`protofl.batch.events`).
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
    return do_study(
        found,
        change,
        runs,
        start=start,
        skip_missing=skip_missing,
        again=again,
        at_once=at_once,
        follow=follow,
    )

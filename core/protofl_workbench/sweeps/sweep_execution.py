"""Execution of a sweep: start, resume or plan it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from protofl.errors import UsageError
from protofl.records.layout import fresh_folder
from protofl.runs.results.changes import check_unchanged
from protofl.system.files.atomic import disk_errors
from protofl.system.files.home import expand_user
from protofl.system.files.lock import folder_lock
from protofl.system.options.parsing import parse_options
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import CheckedRun
from protofl_workbench.batch.batch_tasks import check_error
from protofl_workbench.batch.run_batch import RunBatch
from protofl_workbench.sweeps.sweep import (
    Sweep,
    check_new_folder,
    check_same_place,
    load_sweep,
    write_sweep,
)
from protofl_workbench.sweeps.sweep_results import (
    CSV,
    JSON,
    SweepResult,
    point_results,
)


def new_folder(sweep: Sweep) -> Path:
    """Return a new folder ``runs/sweeps/METHOD-MODELS-DATA-TIME``."""
    options = sweep.base.options
    names = [options.get("method"), options.get("models")]
    names += [str(options.get("dataset") or "").partition(":")[0]]
    return fresh_folder(*(str(word) for word in names if word), below=Path("runs/sweeps"))


def plan_sweep(
    sweep: Sweep, *, at_once: int | None = None, follow: events.Follow = events.ignore
) -> list[CheckedRun]:
    """Return the checked runs of a sweep; nothing is trained or written.

    Args:
        sweep: The sweep.
        at_once: Number of parallel runs, see `RunBatch`.
        follow: Called with every event of the batch.

    Returns:
        The runs with their steps and estimated seconds.

    Raises:
        UsageError: A run cannot be done.
    """
    with RunBatch(sweep.runs, at_once=at_once, follow=follow) as batch:
        return _checked(sweep, batch, measure=True)


def start_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
) -> SweepResult:
    """Execute a sweep.

    The runs are in the folder of runs (`Sweep.runs`), where later sweeps find them.

    Args:
        sweep: The sweep.
        folder: New folder of the sweep.
        at_once: Number of parallel runs, see `RunBatch`.
        follow: Called with every event of the batch.

    Raises:
        UsageError: A run cannot be done, or the folder is in use; nothing has been started.
    """
    check_new_folder(folder, sweep)
    with ExitStack() as until, disk_errors():
        batch = until.enter_context(_batch(sweep, folder, at_once=at_once, follow=follow))
        checked = _checked(sweep, batch)
        until.enter_context(folder_lock(expand_user(folder).absolute(), "--out"))
        check_new_folder(folder, sweep)
        write_sweep(folder, sweep)
        return _execute(sweep, folder, batch, checked)


def resume_sweep(
    folder: Path,
    *,
    said: Iterable[str] = (),
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
) -> tuple[Sweep, SweepResult]:
    """Resume a sweep.

    Args:
        folder: Folder of the sweep.
        said: Repeated options ``NAME.KEY=VALUE`` that need the user's consent.
        at_once: Number of parallel runs, see `RunBatch`.
        follow: Called with every event of the batch.

    Raises:
        UsageError: The folder has no sweep, another process is using it, or a run cannot be done.
    """
    sweep = load_sweep(folder)
    check_same_place(sweep)
    for name in (CSV, JSON):
        if (expand_user(folder) / name).is_dir():
            raise UsageError(f"--resume {folder}: {name} is a folder, expected a file")
    again = parse_options({"set": [*said]}).get("options", {})
    check_unchanged(sweep.base.options.get("options", {}), again, ())
    sweep = replace(sweep, base=replace(sweep.base, said=again))
    with ExitStack() as until, disk_errors():
        until.enter_context(folder_lock(expand_user(folder).absolute(), "--resume"))
        batch = until.enter_context(_batch(sweep, folder, at_once=at_once, follow=follow))
        return sweep, _execute(sweep, folder, batch, _checked(sweep, batch))


def _batch(sweep: Sweep, folder: Path, *, at_once: int | None, follow: events.Follow) -> RunBatch:
    """Return the batch of a sweep; a run that would diverge again is not trained again."""
    return RunBatch(
        sweep.runs, at_once=at_once, follow=follow, group=folder.name, repeat_diverged=False
    )


def _checked(sweep: Sweep, batch: RunBatch, *, measure: bool = False) -> list[CheckedRun]:
    """Plan the runs, and do the dry runs of unfinished ones."""
    checked = batch.check_all(sweep.grid_runs(), measure=measure)
    if (wrong := check_error(checked)) is not None:
        raise wrong
    without = [one for one in checked if not one.scores_server]
    if sweep.figure.endswith("-server") and without:
        raise UsageError(
            f"--figure {sweep.figure}: {without[0].batch_run.name} has no server accuracy on test "
            "samples",
            do=f"compare points by --figure {sweep.figure.removesuffix('-server')}",
        )
    return checked


def _execute(
    sweep: Sweep, folder: Path, batch: RunBatch, checked: Sequence[CheckedRun]
) -> SweepResult:
    results = SweepResult(sweep.figure, point_results(sweep, batch.run_all(checked)), folder)
    results.write(folder)
    return results

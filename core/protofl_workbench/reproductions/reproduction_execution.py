"""Execution of a reproduction: runs of its cells as a batch, and accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

from protofl.errors import UsageError
from protofl.records.failure import read_failure
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.batch_tasks import check_error
from protofl_workbench.batch.run_batch import RunBatch
from protofl_workbench.reproductions.account import flops, plan_of, traffic
from protofl_workbench.reproductions.cells import Cell, Change
from protofl_workbench.reproductions.inventory import (
    ReproductionProgress,
    check_is_no_benchmark,
    finished_run,
    missing_inputs,
    reuse_notes,
    unfinished_run,
)
from protofl_workbench.reproductions.reproduction import Reproduction
from protofl_workbench.reproductions.reproduction_entries import result_of
from protofl_workbench.reproductions.reproduction_figures import READERS
from protofl_workbench.reproductions.reproduction_result import ReproductionResult


@contextmanager
def error_place(cell: Cell) -> Iterator[None]:
    """Add the name of a cell to errors about its options."""
    try:
        yield
    except UsageError as error:
        error.what = f"{cell.name}: {error.what}"
        raise


Note = Callable[[str], None]


def run_reproduction(
    reproduction: Reproduction,
    change: Change | None = None,
    runs: str | Path = "reproductions",
    *,
    start: bool = True,
    skip_missing: bool = False,
    again: bool = False,
    at_once: int | None = None,
    follow: events.Follow = events.ignore,
    note: Note = lambda line: None,
) -> ReproductionResult:
    """Run the missing cells of a reproduction, and compare our figures with the published ones.

    Args:
        reproduction: The reproduction.
        change: Scale, client sampler and other changes.
        runs: Folder of runs; finished runs are not repeated.
        start: False to only read existing runs. The runs of an account are never started.
        skip_missing: True to leave cells empty if their data or weights are missing.
        again: True to repeat runs that diverged before, although nothing has changed since.
        at_once: Number of parallel runs; None for one per core, 0 to run in this process.
        follow: Called with every event of the batch.
        note: Takes a line before each long step.

    Raises:
        UsageError: A cell cannot be run, or its data or weights are missing; nothing has been
            started.
    """
    check_is_no_benchmark(reproduction)
    progress = ReproductionProgress.of(reproduction, change or Change())
    start = start and reproduction.kind != "account"
    cells = progress.to_run()
    missing = missing_inputs(cells, note, fetch=start)
    accounts = missing_inputs(progress.to_account(), note, fetch=start, account=True)
    missing |= accounts
    if (accounts or (start and missing)) and not skip_missing:
        raise missing_error(progress, missing)
    progress.missing |= missing
    if start:
        _run(progress, cells, Path(runs), at_once, follow, again=again)
    else:
        _find_runs(progress, Path(runs), note)
    for cell in progress.to_account():
        note(f"counting {cell.name}")
        if reproduction.draw == "partition":
            with error_place(cell):
                progress.splits[cell.key] = _split_of(cell)
            continue
        count = flops if READERS[cell.figure.read].measure == "flops" else traffic
        with error_place(cell):
            progress.rows[cell.key] = count(cell.request())
    return result_of(progress)


def _split_of(cell: Cell) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the samples of each client and class, [M, C], and the classes."""
    plan = plan_of(cell.request())
    train, test = plan.split(0).counts(plan.data.y, plan.data.num_classes)
    return (train + test).numpy(), tuple(plan.data.classes)


def missing_error(progress: ReproductionProgress, missing: Mapping[str, UsageError]) -> UsageError:
    """Return the error about missing data or weights, with the names of the cells."""
    first = next(iter(missing.values()))
    names = [cell.name for cell in progress.cells if cell.options and cell.key in missing]
    more = f" and {len(names) - 3} more cells" if len(names) > 3 else ""
    near = f"needed by {'; '.join(names[:3])}{more}"
    return UsageError(first.what, "; ".join(p for p in (first.near, near) if p), first.do)


def _run(
    progress: ReproductionProgress,
    cells: Sequence[Cell],
    runs: Path,
    at_once: int | None,
    follow: events.Follow,
    *,
    again: bool,
) -> None:
    """Execute the runs of cells whose data are here."""
    cells = [cell for cell in cells if cell.key not in progress.missing]
    batch_runs = [BatchRun(cell.name, cell.request()) for cell in cells]
    if not batch_runs:
        return
    with RunBatch(runs, at_once=at_once, follow=follow, group=progress.reproduction.name) as batch:
        checked: list[CheckedRun] = batch.check_all(batch_runs)
        if (wrong := check_error(checked)) is not None:
            raise wrong
        todo = [one for one in checked if again or one.failed_before is None]
        outcomes = {outcome.batch_run: outcome for outcome in batch.run_all(todo)}
    for cell, one in zip(cells, checked, strict=True):
        _record_outcome(progress, cell, outcomes.get(one.batch_run) or _previous_failure(one))


def _previous_failure(checked: CheckedRun) -> Outcome:
    """Return the outcome of a run that diverged before and is not repeated."""
    assert checked.failed_before is not None
    error = checked.failed_before.error
    error.what += " (in an earlier run; --again repeats it)"
    return checked.outcome("failed", error)


def _record_outcome(progress: ReproductionProgress, cell: Cell, outcome: Outcome) -> None:
    """Record the outcome of a cell's run, including the finished rounds of a failed run."""
    if outcome.error is not None:
        progress.failed[cell.key] = outcome.error
    if outcome.folder is not None:
        progress.folders[cell.key] = outcome.folder
        with suppress(UsageError) if outcome.error else nullcontext():
            progress.rows[cell.key] = outcome.run.rows


def _find_runs(progress: ReproductionProgress, runs: Path, note: Note) -> None:
    for cell in progress.to_run():
        note(f"looking for {cell.name}")
        with error_place(cell):
            run = finished_run(cell, runs)
        if run is not None:
            progress.rows[cell.key], progress.folders[cell.key] = run.rows, run.folder
            continue
        if (unfinished := unfinished_run(cell.request(), runs)) is None:
            progress.parts[cell.key] = reuse_notes(cell.request(), runs)
            continue
        rounds, trials = unfinished.config["rounds"], int(cell.options.get("trials", 1))
        rounds = cell.rounds or rounds
        progress.folders[cell.key] = unfinished.folder
        if failure := read_failure(unfinished.folder):
            progress.failed[cell.key] = failure.error
            progress.rows[cell.key] = unfinished.part(range(trials), rounds).rows
        else:
            progress.parts[cell.key] = (
                f"{unfinished.rounds_done} of {rounds * trials} rounds are done"
            )

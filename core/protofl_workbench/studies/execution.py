"""The execution of a study: its cells as runs of a batch, and accounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from protofl.errors import UsageError
from protofl.records.failure import failure_of
from protofl_workbench.batch import events
from protofl_workbench.batch.batch import Batch
from protofl_workbench.batch.tasks import mistakes
from protofl_workbench.batch.wanted import Outcome, Tried, Wanted
from protofl_workbench.studies.account import flops, plan_of, traffic
from protofl_workbench.studies.cells import Cell, Change
from protofl_workbench.studies.entries import result_of
from protofl_workbench.studies.figures import READERS
from protofl_workbench.studies.inventory import Done, begun, check_here, not_reused, whole
from protofl_workbench.studies.result import StudyResult
from protofl_workbench.studies.study import Study

_QUOTED = re.compile(r"'([^']+)'")


@contextmanager
def placed(study: Study, cell: Cell) -> Iterator[None]:
    """Errors about a cell's options name file, line and cell.

    Args:
        study: The study.
        cell: One of its cells.
    """
    try:
        yield
    except UsageError as error:
        error.what = f"{place_of(study, cell, error.what)}{cell.name}: {error.what}"
        raise


def place_of(study: Study, cell: Cell, what: str) -> str:
    """``FILE, line N: `` of the option that an error names.

    It is the row's line where no option is named. What a user has said is in no file.

    Args:
        study: The study.
        cell: The cell.
        what: The error.
    """
    if study.source is None:
        return ""
    names = {part for quoted in _QUOTED.findall(what) for part in (quoted, *quoted.split("."))}
    if names & _words(cell.said):
        return ""
    layers: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [
        (("rows", cell.row), study.rows[cell.row].options),
        (("columns", cell.column), study.columns[cell.column].options),
        (("options",), study.options),
    ]
    for path, options in layers:
        for key, value in options.items():
            if key in names or names & _words(value):
                inside = _path(value, names) if isinstance(value, Mapping) else ()
                return f"{study.source.where((*path, key, *inside))}: "
    return f"{study.source.where(('rows', cell.row))}: "


def _path(values: Mapping[str, Any], names: set[str]) -> tuple[str, ...]:
    """The keys that lead to a name."""
    for key, value in values.items():
        if names.intersection(key.split(".")):
            return (key,)
        if isinstance(value, Mapping) and (inside := _path(value, names)):
            return (key, *inside)
    return ()


def _words(value: Any) -> set[str]:  # noqa: ANN401 - options are of many types
    """The keys and texts in an option, and what dots divide in them."""
    if isinstance(value, Mapping):
        return set().union(*map(_words, value), *map(_words, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(_words, value))
    return {str(value), *str(value).split(".")}


Note = Callable[[str], None]


def do_study(
    study: Study,
    change: Change | None = None,
    runs: str | Path = "runs",
    *,
    start: bool = True,
    skip_missing: bool = False,
    again: bool = False,
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
        again: Whether runs are done again that diverged before, though nothing has changed since.
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
        _run(done, Path(runs), at_once, follow, again=again)
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


def _run(
    done: Done, runs: Path, at_once: int | None, follow: events.Follow, *, again: bool
) -> None:
    if done.change.rounds is not None:
        for cell in done.to_run():
            _is_whole(done, cell, runs)
    cells = [cell for cell in done.to_run() if cell.key not in done.rows]
    wanted = [Wanted(cell.name, cell.request()) for cell in cells]
    if not wanted:
        return
    with Batch(runs, at_once=at_once, follow=follow, group=done.study.name) as batch:
        tried: list[Tried] = batch.try_all(wanted)
        if (wrong := mistakes(tried)) is not None:
            first = next(i for i, one in enumerate(tried) if one.error is not None)
            wrong.what = f"{place_of(done.study, cells[first], wrong.what)}{wrong.what}"
            raise wrong
        todo = [one for one in tried if again or one.failed_before is None]
        outcomes = {outcome.wanted: outcome for outcome in batch.do_all(todo)}
    for cell, one in zip(cells, tried, strict=True):
        _take(done, cell, outcomes.get(one.wanted) or _as_before(one))


def _as_before(tried: Tried) -> Outcome:
    """What became of a run that diverged before, and is not done again."""
    assert tried.failed_before is not None
    error = tried.failed_before.error
    error.what += ", as before: it is done again only with --again"
    return Outcome(
        tried.wanted,
        "failed",
        tried.folder,
        seed=tried.seed,
        rounds=tried.rounds,
        trials=tried.trials,
        error=error,
    )


def _take(done: Done, cell: Cell, outcome: Outcome) -> None:
    """Take what became of a cell's run; of one that failed too the rounds that it finished."""
    if outcome.error is not None:
        done.failed[cell.key] = outcome.error
    if outcome.folder is not None:
        done.folders[cell.key] = outcome.folder
        with suppress(UsageError) if outcome.error else nullcontext():
            done.rows[cell.key] = outcome.run.rows


def _is_whole(done: Done, cell: Cell, runs: Path) -> bool:
    """Whether the run of a cell is there with all rounds that are wanted; it is taken then."""
    with placed(done.study, cell):
        run = whole(cell, runs)
    if run is not None:
        done.rows[cell.key], done.folders[cell.key] = run.rows, run.folder
    return run is not None


def _look_up(done: Done, runs: Path, note: Note) -> None:
    for cell in done.to_run():
        note(f"looking for {cell.name}")
        if _is_whole(done, cell, runs):
            continue
        if (part := begun(cell.request(), runs)) is None:
            done.parts[cell.key] = not_reused(cell.request(), runs)
            continue
        rounds, trials = part.config["rounds"], int(cell.options.get("trials", 1))
        rounds = cell.rounds or rounds
        done.folders[cell.key] = part.folder
        if failure := failure_of(part.folder):
            done.failed[cell.key] = failure.error
            done.rows[cell.key] = part.part(range(trials), rounds).rows
        else:
            done.parts[cell.key] = f"{part.rounds_done} of {rounds * trials} rounds are there"

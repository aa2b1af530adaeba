"""A search: points are chosen one after the other, from the results of earlier points.

Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) chooses them, seeded for each
point, and its median rule stops a run that is worse in a round than half of the finished ones were
there (Golovin et al., 2017). What it knows lies in a journal in the sweep's folder. So a search
that is interrupted goes on where it was, and with one run at a time it makes the same choices.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import UsageError
from protofl.records.row import Row
from protofl.runs.recorded_run import load_run
from protofl.system.randomness import numpy_stream
from protofl_workbench.batch.batch_events import BatchRun, Outcome
from protofl_workbench.sweeps.sweep import SWEEP, Sweep
from protofl_workbench.sweeps.sweep_points import distribution_of, point_value, suggest_value
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, figure_of, point_run

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "search.journal"

_STEP = 10_000_000
"""More than the rounds of any run: a step of Optuna's is a run and a round."""


@dataclass(eq=False)
class _PointTrial:
    """A point in progress.

    Attributes:
        trial: What Optuna calls it.
        line: The point and its runs that have ended.
        rows: The rounds of the run that is going on.
        busy: Whether a run of it is going on.
    """

    trial: Trial
    line: PointResult
    rows: list[Row] = field(default_factory=list)
    busy: bool = False


class Search:
    """The points of a search; a `protofl_workbench.batch.run_batch.Source`.

    The runs of a point, one for each seed, are done one after the other. Behind each round that was
    evaluated Optuna is told what the point seems to be worth: the mean over its finished runs and
    the one that is going on.

    Args:
        sweep: The sweep.
        folder: Its folder.

    Raises:
        UsageError: Optuna is not installed, or the axes are not those of the search so far.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        self._sweep, self._folder = sweep, folder
        self._optuna = check_installed()
        self._study = self._open(folder / JOURNAL)
        self._going: list[_PointTrial] = []
        self._of: dict[BatchRun, _PointTrial] = {}
        self._check_axes()
        self._requeue()

    def _open(self, journal: Path) -> Study:
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        _repair_journal(journal)
        backend = optuna.storages.journal.JournalFileBackend(
            str(journal), optuna.storages.journal.JournalFileOpenLock(str(journal))
        )
        study: Study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(),
        )
        return study

    def _check_axes(self) -> None:
        """Check that earlier points are on these axes; the ends of a range may differ."""
        state = self._optuna.trial.TrialState
        compatible = self._optuna.distributions.check_distribution_compatibility
        now = {
            axis.key: distribution_of(self._optuna.distributions, axis) for axis in self._sweep.axes
        }
        for trial in self._trials(state.COMPLETE, state.PRUNED):
            was = trial.distributions
            others = [key for key in {**was, **now} if key not in was or key not in now]
            for key in was.keys() & now.keys():
                try:
                    compatible(was[key], now[key])
                except ValueError:
                    others.append(key)
            if others:
                raise UsageError(
                    f"{self._folder / SWEEP}: [grid] is not that of the search so far, in "
                    f"{', '.join(others)}",
                    "of a search only the ends of a range may be changed",
                    "put [grid] back, or begin another sweep: runs that it shares are found again",
                )

    def _requeue(self) -> None:
        """Points that were interrupted, or failed, are tried once more, before others."""
        state = self._optuna.trial.TrialState
        for trial in self._trials(state.RUNNING):
            self._study.tell(trial.number, state=state.FAIL)
        fresh = [t.system_attrs["fixed_params"] for t in self._trials(state.WAITING)]
        known = [t.params for t in self._trials(state.COMPLETE, state.PRUNED)] + fresh
        for trial in self._trials(state.FAIL):
            whole = trial.params.keys() == {axis.key for axis in self._sweep.axes}
            if whole and trial.params not in known:
                self._study.enqueue_trial(trial.params)
                known.append(trial.params)

    def _trials(self, *states: Any) -> list[FrozenTrial]:  # noqa: ANN401 - Optuna's
        found: list[FrozenTrial] = self._study.get_trials(deepcopy=False, states=states)
        return found

    # --- what a batch asks ----------------------------------------------------------------------

    def next(self) -> BatchRun | None:
        """Return the next run of a point in progress, or of a new point."""
        waiting = [t for t in self._going if not t.busy]
        if not waiting and self._begun() < self._sweep.budget:
            waiting = [self._new()]
            self._going += waiting
        if not waiting:
            return None
        trying = waiting[0]
        trying.busy, trying.rows = True, []
        wanted = self._sweep.run_at(trying.line.point, self._sweep.seeds[len(trying.line.runs)])
        self._of[wanted] = trying
        return wanted

    def _begun(self) -> int:
        """Points that are done with or going on; those that failed here are not tried again."""
        state = self._optuna.trial.TrialState
        return len(self._trials(state.COMPLETE, state.PRUNED)) + len(self._going) + self._failed

    _failed = 0

    def _new(self) -> _PointTrial:
        optuna, number = self._optuna, self._begun()
        seed = int(numpy_stream(self._sweep.seeds[0], "search", number).integers(2**31))
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        trial = self._study.ask()
        return _PointTrial(
            trial, PointResult({a.key: suggest_value(trial, a) for a in self._sweep.axes})
        )

    def should_continue(self, wanted: BatchRun, row: dict[str, Any]) -> bool:
        """Return False if the median rule stops a run."""
        trying = self._of[wanted]
        trying.rows.append(Row(row))
        if not self._report(trying):
            return True
        return not trying.trial.should_prune()

    def _report(self, trying: _PointTrial) -> bool:
        """Tell Optuna what a point seems to be worth by its last row; whether that was new."""
        row, figure = trying.rows[-1], self._sweep.figure
        now = figure_of(trying.rows, figure)
        if now is None or figure_of([row], figure) is None:
            return False
        values = [*trying.line.values("value"), now["value"]]
        step = len(trying.line.runs) * _STEP + row.round
        trying.trial.report(sum(values) / len(values), step)
        return True

    def run_ended(self, outcome: Outcome) -> None:
        """Take what a run came to; the point is done with its last run."""
        trying = self._of.pop(outcome.batch_run)
        trying.busy = False
        if outcome.state == "finished":  # what was there already has not been told
            for row in outcome.run.rows_of(0):
                if row.round not in {told.round for told in trying.rows}:
                    trying.rows.append(row)
                    self._report(trying)
        runs = trying.line.runs
        runs.append(point_run(outcome, self._sweep.seeds[len(runs)], self._sweep.figure))
        if len(runs) < self._sweep.trials and outcome.state == "finished":
            return
        trying.trial.set_user_attr("runs", [_written(run) for run in runs])
        state, value = self._optuna.trial.TrialState, trying.line.mean("value")
        if outcome.state == "finished" and value is not None:
            self._study.tell(trying.trial, value)
        elif outcome.state == "stopped":
            self._study.tell(trying.trial, state=state.PRUNED)
        else:
            self._failed += 1
            self._study.tell(trying.trial, state=state.FAIL)
        self._going.remove(trying)

    # --- what it came to ------------------------------------------------------------------------

    def lines(self) -> list[PointResult]:
        """Return all points so far; a point that was chosen several times is listed once."""
        state = self._optuna.trial.TrialState
        lines: dict[tuple[Any, ...], PointResult] = {}
        for trials in map(self._trials, (state.COMPLETE, state.PRUNED, state.FAIL)):
            for trial in trials:
                runs = [self._read(values) for values in trial.user_attrs.get("runs", ())]
                if runs:
                    axes = self._sweep.axes
                    point = {axis.key: point_value(axis, trial.params) for axis in axes}
                    missing = [PointRun(seed) for seed in self._sweep.seeds[len(runs) :]]
                    lines.setdefault((*point.values(),), PointResult(point, runs + missing))
        return [*lines.values()]

    def _read(self, values: Mapping[str, Any]) -> PointRun:
        found = PointRun(
            **{**values, "folder": Path(values["folder"]) if values["folder"] else None}
        )
        if found.folder is None or found.state == "failed":
            return found
        try:
            rows = load_run(found.folder).rows_of(0)[: found.rounds]
        except UsageError as gone:
            return PointRun(found.seed, "missing", error=gone.what)
        found.figure = figure_of(rows, self._sweep.figure)
        return found


def check_installed() -> Any:  # noqa: ANN401 - a module
    """Optuna.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "--search needs Optuna, which is not installed",
            do="pip install 'protofl[tune]'",
        ) from None
    return optuna


def _written(run: PointRun) -> dict[str, Any]:
    folder = str(run.folder) if run.folder else None
    return {
        "seed": run.seed,
        "state": run.state,
        "rounds": run.rounds,
        "folder": folder,
        "error": run.error,
    }


def _repair_journal(journal: Path) -> None:
    """Take away what a search that was killed left: half a line, and a lock.

    The sweep's folder is this process's alone (`protofl.system.files.lock.folder_lock`).
    """
    for lock in journal.parent.glob(f"{journal.name}*.lock*"):
        lock.unlink(missing_ok=True)
    with suppress(FileNotFoundError), open(journal, "r+b") as file:
        text = file.read()
        if text and not text.endswith(b"\n"):
            file.truncate(text.rfind(b"\n") + 1)
            file.flush()
            os.fsync(file.fileno())

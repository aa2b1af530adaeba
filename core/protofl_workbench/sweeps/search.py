"""Search: each point is chosen from the results of earlier points.

Optuna's tree-structured Parzen estimator (Bergstra et al., 2011), seeded for each point, chooses
them. Its median rule stops a run that is worse in a round than half of the finished runs were in
this round (Golovin et al., 2017), after a warm-up (`is_warm`). A journal in the sweep's folder
stores the state, so that an interrupted search resumes; with one run at a time it makes the same
choices.

A point whose run diverges is one of the budget's points. Optuna learns it as a stopped run, and
its run is not trained again where it would diverge again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.errors import Diverged, UsageError
from protofl.records.row import Row
from protofl.system.randomness import numpy_stream
from protofl_workbench.batch.batch_events import BatchRun, Outcome
from protofl_workbench.recorded.recorded_run import load_run
from protofl_workbench.sweeps.sweep import SWEEP, Sweep
from protofl_workbench.sweeps.sweep_points import distribution_of, point_value, suggest_value
from protofl_workbench.sweeps.sweep_results import PointResult, PointRun, figure_of, point_run

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "search.journal"

_STEP = 10_000_000
"""Larger than any number of rounds: an Optuna step is the number of a run and a round."""

WARM_UP = 0.25
"""Share of a run's rounds before which the median rule stops no run."""


def is_warm(rows: Sequence[Row], rounds: int) -> bool:
    """Return True if the warm-up of a run is over, so that the median rule may stop the run.

    Many options act on what clients receive: a loss term with received prototypes is not there in
    the first round. So the warm-up includes the first round in which clients received tensors that
    a server made from uploads, that is, round 2 or a later one. A method without any traffic has
    no such round. The warm-up also has a share of all rounds (`WARM_UP`).

    Args:
        rows: Lines of all rounds of the run so far.
        rounds: Requested rounds of the run.
    """
    silent = not any(row.upload_floats or row.download_floats for row in rows)
    received = any(row.round > 0 and row.download_floats for row in rows)
    return rows[-1].round + 1 >= math.ceil(WARM_UP * rounds) and (received or silent)


@dataclass(eq=False)
class _PointTrial:
    """A point in progress.

    Attributes:
        trial: Optuna's trial.
        line: The point and its ended runs.
        rows: Rounds of the current run.
        busy: True if a run is in progress.
    """

    trial: Trial
    line: PointResult
    rows: list[Row] = field(default_factory=list)
    busy: bool = False


class Search:
    """The points of a search; a `protofl_workbench.batch.batch_tasks.BatchSource`.

    The runs of a point, one for each seed, are executed one by one. After each evaluated round,
    Optuna receives the mean of the point's runs so far.

    Args:
        sweep: The sweep.
        folder: Folder of the sweep.

    Raises:
        UsageError: Optuna is not installed, or the axes differ from those of earlier points.
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
                    f"{self._folder / SWEEP}: [grid] differs from that of earlier points in "
                    f"{', '.join(others)}",
                    "only the ends of a range may change during a search",
                    "restore [grid], or start another sweep, which reuses common runs",
                )

    def _requeue(self) -> None:
        """Queue interrupted and failed points once more, before new points."""
        state = self._optuna.trial.TrialState
        for trial in self._trials(state.RUNNING):
            self._study.tell(trial.number, state=state.FAIL)
        fresh = [t.system_attrs["fixed_params"] for t in self._trials(state.WAITING)]
        known = [t.params for t in self._trials(state.COMPLETE, state.PRUNED)] + fresh
        for trial in self._trials(state.FAIL):
            complete = trial.params.keys() == {axis.key for axis in self._sweep.axes}
            if complete and trial.params not in known:
                self._study.enqueue_trial(trial.params)
                known.append(trial.params)

    def _trials(self, *states: Any) -> list[FrozenTrial]:  # noqa: ANN401 - Optuna's
        result: list[FrozenTrial] = self._study.get_trials(deepcopy=False, states=states)
        return result

    # --- source of a batch ------------------------------------------------------------------------

    def next(self) -> BatchRun | None:
        """Return the next run of a point in progress, or of a new point."""
        waiting = [t for t in self._going if not t.busy]
        if not waiting and self._begun() < self._sweep.budget:
            waiting = [self._new()]
            self._going += waiting
        if not waiting:
            return None
        point = waiting[0]
        point.busy, point.rows = True, []
        batch_run = self._sweep.run_at(point.line.point, self._sweep.seeds[len(point.line.runs)])
        self._of[batch_run] = point
        return batch_run

    def _begun(self) -> int:
        """Return the number of started points; points that failed here are not repeated."""
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

    def should_continue(self, batch_run: BatchRun, row: Row, rounds: int) -> bool:
        """Return False if the median rule stops a run."""
        point = self._of[batch_run]
        point.rows.append(row)
        if not self._report(point) or self._sweep.prune == "none":
            return True
        return not (is_warm(point.rows, rounds) and point.trial.should_prune())

    def _report(self, point: _PointTrial) -> bool:
        """Report a point's mean to Optuna after its last row; return True if it was evaluated."""
        row, figure = point.rows[-1], self._sweep.figure
        now = figure_of(point.rows, figure)
        if now is None or figure_of([row], figure) is None:
            return False
        values = [*point.line.values("value"), now["value"]]
        step = len(point.line.runs) * _STEP + row.round
        point.trial.report(sum(values) / len(values), step)
        return True

    def run_ended(self, outcome: Outcome) -> None:
        """Take the outcome of a run; the point ends with its last run."""
        point = self._of.pop(outcome.batch_run)
        point.busy = False
        if outcome.state == "finished":  # rounds of reused runs were not reported
            for row in outcome.run.rows_of(0):
                if row.round not in {reported.round for reported in point.rows}:
                    point.rows.append(row)
                    self._report(point)
        runs = point.line.runs
        runs.append(point_run(outcome, self._sweep.seeds[len(runs)], self._sweep.figure))
        if len(runs) < self._sweep.trials and outcome.state == "finished":
            return
        point.trial.set_user_attr("runs", [_written(run) for run in runs])
        state, value = self._optuna.trial.TrialState, point.line.mean("value")
        if outcome.state == "finished" and value is not None:
            self._study.tell(point.trial, value)
        elif outcome.state == "stopped" or isinstance(outcome.error, Diverged):
            self._study.tell(point.trial, state=state.PRUNED)
        else:
            self._failed += 1
            self._study.tell(point.trial, state=state.FAIL)
        self._going.remove(point)

    # --- results --------------------------------------------------------------------------

    def lines(self) -> list[PointResult]:
        """Return all points so far, each once."""
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
        result = PointRun(
            **{**values, "folder": Path(values["folder"]) if values["folder"] else None}
        )
        if result.folder is None or result.state == "failed":
            return result
        try:
            rows = load_run(result.folder).rows_of(0)[: result.rounds]
        except UsageError as gone:
            return PointRun(result.seed, "missing", error=gone.what)
        result.figure = figure_of(rows, self._sweep.figure)
        return result


def check_installed() -> Any:  # noqa: ANN401 - a module
    """Return the module of Optuna.

    Raises:
        UsageError: Optuna is not installed.
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
    """Return a run for the journal; its figure is read from the record again."""
    values = {key: value for key, value in asdict(run).items() if key != "figure"}
    return {**values, "folder": str(run.folder) if run.folder else None}


def _repair_journal(journal: Path) -> None:
    """Remove half a line and locks that a killed search left.

    No other process uses the folder (`protofl.system.files.lock.folder_lock`).
    """
    for lock in journal.parent.glob(f"{journal.name}*.lock*"):
        lock.unlink(missing_ok=True)
    with suppress(FileNotFoundError), open(journal, "r+b") as file:
        text = file.read()
        if text and not text.endswith(b"\n"):
            file.truncate(text.rfind(b"\n") + 1)
            file.flush()
            os.fsync(file.fileno())

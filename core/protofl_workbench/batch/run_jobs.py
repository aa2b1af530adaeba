"""Jobs of a batch: checking or executing a run, with an event for each round.

Jobs, events and results are pickled between processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from protofl.errors import ProtoflError
from protofl.federation import events as of_rounds
from protofl.federation.plan.plan import Plan
from protofl.records.reading import Reading
from protofl.records.run_folder import RunFolder
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.runs.request.request import Request
from protofl.runs.resume.requested_run import RequestedRun
from protofl.runs.resume.reuse import DivergedBefore, run_or_reuse
from protofl.system.machine import Idle
from protofl.system.options.table import EXTENT, OPTIONS
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome, State
from protofl_workbench.batch.estimate import pace, seconds_of, steps_in, workload


@dataclass(frozen=True)
class CheckJob:
    """Plan a run and do its dry run, unless it is finished.

    Attributes:
        request: The run.
        runs: The folder of runs.
        measure: True to measure the seconds of a step.
        only_plan: True to leave out the dry run.
    """

    request: Request
    runs: Path
    measure: bool
    only_plan: bool = False


@dataclass(frozen=True)
class RunJob:
    """Execute a run, unless it is finished.

    Attributes:
        request: The run.
        runs: The folder of runs.
        repeat_diverged: False if a run that would diverge again fails without training.
    """

    request: Request
    runs: Path
    repeat_diverged: bool = True


Job: TypeAlias = CheckJob | RunJob
Result: TypeAlias = CheckedRun | Outcome | ProtoflError
Tell: TypeAlias = Callable[[of_rounds.Event], None]
"""Takes an event of a run."""


class JobRunner:
    """Carries out jobs one by one, and keeps hosts and dry runs for the next job.

    Args:
        tell: Takes the events of a run.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._idle = Idle()
        self._dry: set[str] = set()
        self._paces: dict[str, dict[str, float]] = {}

    def run_job(self, job: Job) -> Result:
        """Return the result of a job, or its error."""
        try:
            return self._check(job) if isinstance(job, CheckJob) else self._execute(job)
        except Exception as error:  # plugins may raise anything; it is the result of the job
            self._idle.close()  # a host may be in the middle of a job
            return ProtoflError.from_values(ProtoflError.to_values(error))

    def close(self) -> None:
        """Stop the idle hosts."""
        self._idle.close()

    def _check(self, job: CheckJob) -> CheckedRun:
        request = job.request
        requested = RequestedRun.of(request, of_rounds.ignore)  # notes are shown when it runs
        plan, s = requested.plan, requested.plan.settings
        recorded = requested.candidates(job.runs)
        whole = (run for run in recorded if not run.lacks_end)
        reusable = next(filter(None, map(requested.part_of, whole)), None)
        load, asked = workload(plan), s.rounds * s.trials
        rounds_done, seconds = asked if reusable else 0, None
        if reusable is None and (reusable := next(filter(requested.can_extend, recorded), None)):
            # All rounds may be done without the evaluation of a last round.
            rounds_done = min(reusable.rounds_done, asked - 1)
        if rounds_done < asked:
            alike = _without(request.options, EXTENT)
            if s.dry_run and not job.only_plan and alike not in self._dry:
                dry_run(plan)
                self._dry.add(alike)
            if job.measure:
                paces = self._paces_of(plan, request.options)
                seconds = seconds_of(load, paces) * (1 - rounds_done / asked)
        return CheckedRun(
            BatchRun("", request),
            identity=requested.identity,
            folder=reusable.folder if reusable else None,
            done=rounds_done,
            seed=s.seed,
            rounds=s.rounds,
            trials=s.trials,
            device=plan.device.type,
            steps=steps_in(load),
            scores_server=_scores_server(plan),
            seconds=seconds,
            failed_before=requested.failed_before(reusable)
            if reusable and rounds_done < asked
            else None,
        )

    def _paces_of(self, plan: Plan, options: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds of steps, measured once for similar runs."""
        alike = _without(options, [n for n, option in OPTIONS.items() if not option.step_time])
        if alike not in self._paces:
            self._paces[alike] = pace(plan)
        return self._paces[alike]

    def _execute(self, job: RunJob) -> Outcome:
        batch_run, trained = BatchRun("", job.request), 0

        def follow(event: of_rounds.Event) -> None:
            nonlocal trained
            match event:
                case of_rounds.Planned():
                    s, folder = event.plan.settings, event.folder
                    rows = tuple(folder.rows)
                    self._tell(events.RunPlanned(s.rounds, s.trials, s.seed, folder.path, rows))
                case of_rounds.FolderMade():  # without its rows, for the other process
                    self._tell(of_rounds.FolderMade(RunFolder(event.folder.path)))
                case of_rounds.RoundDone() | of_rounds.Note():
                    trained += isinstance(event, of_rounds.RoundDone)
                    self._tell(event)

        try:
            run = run_or_reuse(
                job.request,
                job.runs,
                progress=follow,
                idle=self._idle,
                repeat_diverged=job.repeat_diverged,
            )
        except DivergedBefore as error:
            return _outcome(batch_run, Reading.of(error.folder), error)
        return replace(_outcome(batch_run, run), reused=not trained)


def _outcome(batch_run: BatchRun, run: Reading, error: ProtoflError | None = None) -> Outcome:
    """Return the outcome of a recorded run, which has failed if there is an error."""
    seed, rounds, trials = (int(run.config[key]) for key in ("seed", "rounds", "trials"))
    state: State = "failed" if error else "finished"
    return Outcome(batch_run, state, run.folder, False, seed, rounds, trials, error)


def _scores_server(plan: Plan) -> bool:
    """Return True if the record may have the server's accuracy."""
    has_test = plan.settings.eval_server and plan.split(0).global_test is not None
    is_scored = has_test and plan.composition.has("global_models")
    return is_scored or plan.composition.has("end_round")  # which may record anything


def _without(options: Mapping[str, Any], keys: Collection[str]) -> str:
    """Return options without some keys as text, to find equal ones."""
    kept = {key: value for key, value in options.items() if key not in keys}
    return json.dumps(kept, sort_keys=True, default=str)

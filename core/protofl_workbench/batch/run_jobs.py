"""The jobs of a batch: trying a run, or doing it, with an event for each round.

Jobs, events and results cross to worker processes pickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from protofl.errors import ProtoflError
from protofl.federation import events as of_rounds
from protofl.federation.measures import check_measures
from protofl.federation.participation import check_participation
from protofl.federation.plan import Plan
from protofl.runs.dry_step.dry_run import dry_step
from protofl.runs.request import Request
from protofl.runs.requested_run import RequestedRun
from protofl.runs.reuse import run_or_reuse
from protofl.runs.tracking import check_trackers
from protofl.system.machine import Idle
from protofl.system.options.table import EXTENT, OPTIONS
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.estimate import pace, seconds_of, steps_in, workload


@dataclass(frozen=True)
class CheckJob:
    """Plan a run and do its dry step, unless it is finished.

    Attributes:
        request: The run.
        runs: The folder of runs.
        measure: True to measure the seconds of a step.
    """

    request: Request
    runs: Path
    measure: bool


@dataclass(frozen=True)
class RunJob:
    """Do a run, unless it is finished.

    Attributes:
        request: The run.
        runs: The folder of runs.
    """

    request: Request
    runs: Path


Job: TypeAlias = CheckJob | RunJob
Result: TypeAlias = CheckedRun | Outcome | ProtoflError
Tell: TypeAlias = Callable[[events.Event], bool]
"""Takes an event; returns whether the run goes on."""


REPORT_SECONDS = 1.0
"""Seconds between two reports on the steps of a round, at least."""


class Stopped(BaseException):
    """Ends a run after a round; no `Exception`, so that no hook catches it."""


class JobRunner:
    """Carries out jobs one after the other; hosts and dry steps serve the next one.

    Args:
        tell: Takes the events of a run.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._idle = Idle()
        self._dry: set[str] = set()
        self._paces: dict[str, dict[str, float]] = {}

    def carry_out(self, job: Job) -> Result:
        """Return what a job came to, or its error."""
        try:
            return self._try(job) if isinstance(job, CheckJob) else self._do(job)
        except Exception as error:
            self._idle.close()  # a host may be in the middle of something
            return ProtoflError.from_values(ProtoflError.to_values(error))

    def close(self) -> None:
        """Stop the hosts that wait for a next run."""
        self._idle.close()

    def _try(self, job: CheckJob) -> CheckedRun:
        request = job.request
        wanted = RequestedRun.of(request, of_rounds.ignore)  # its notes come when it is done
        plan, s = wanted.plan, wanted.plan.settings
        plan.split(0)
        check_measures(plan)
        check_participation(plan)
        check_trackers(plan)
        there = wanted.candidates(job.runs)
        part = next((part for run in there if (part := wanted.part_of(run))), None)
        load, whole = workload(plan), s.rounds * s.trials
        done, seconds = whole if part else 0, None
        if part is None and (part := next(filter(wanted.can_extend, there), None)):
            # It may have all rounds, the last of them not evaluated as a last one is.
            done = min(part.rounds_done, whole - 1)
        if done < whole:
            alike = _without(request.options, EXTENT)
            if s.dry_step and alike not in self._dry:
                dry_step(plan)
                self._dry.add(alike)
            if job.measure:
                left = 1 - done / whole
                seconds = seconds_of(load, self._pace(plan, request.options)) * left
        return CheckedRun(
            BatchRun("", request),
            identity=wanted.identity,
            folder=part.folder if part else None,
            done=done,
            seed=s.seed,
            rounds=s.rounds,
            trials=s.trials,
            device=plan.device.type,
            steps=steps_in(load),
            scores_server=_scores_server(plan),
            seconds=seconds,
            failed_before=wanted.failed_before(part) if part and done < whole else None,
        )

    def _pace(self, plan: Plan, options: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds of steps, measured once for runs in which they are the same."""
        alike = _without(options, [n for n, option in OPTIONS.items() if not option.step_time])
        if alike not in self._paces:
            self._paces[alike] = pace(plan)
        return self._paces[alike]

    def _do(self, job: RunJob) -> Outcome:
        wanted, trained, reported = BatchRun("", job.request), 0, time.monotonic()

        def follow(event: of_rounds.Event) -> None:
            nonlocal trained, reported
            match event:
                case of_rounds.StepsDone() if event.stage == "train":
                    if time.monotonic() - reported >= REPORT_SECONDS:
                        reported = time.monotonic()
                        self._tell(events.TrainingProgress(wanted, event.share))
                case of_rounds.Note():
                    self._tell(events.Note(wanted, event.text))
                case of_rounds.Planned():
                    s, rows = event.plan.settings, event.folder.rows
                    there = event.folder.path if rows else None
                    asked = (s.rounds, s.trials, len(rows), s.seed, there)
                    self._tell(events.RunPlanned(wanted, *asked))
                    for row in rows:
                        tell(row, before=True)
                case of_rounds.FolderMade():
                    self._tell(events.FolderMade(wanted, event.folder.path))
                case of_rounds.RoundDone():
                    trained += 1
                    tell(event.row, before=False)

        def tell(row: Mapping[str, Any], *, before: bool) -> None:
            found = {**_plain(row), "extra": _plain(row["extra"])}
            found["seconds"] = row["seconds"]["total"]
            if not self._tell(events.RoundDone(wanted, found, before)):
                raise Stopped

        try:
            run = run_or_reuse(job.request, job.runs, progress=follow, idle=self._idle)
        except Stopped:
            return Outcome(wanted, "stopped")
        seed, rounds, trials = (int(run.config[key]) for key in ("seed", "rounds", "trials"))
        return Outcome(wanted, "finished", run.folder, not trained, seed, rounds, trials)


def _scores_server(plan: Plan) -> bool:
    """Return True if the record may have the server's accuracy."""
    is_scored = plan.composition.has("global_models") and plan.split(0).global_test is not None
    return is_scored or plan.composition.has("end_round")  # which may tell of anything


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a row that are a number or a text."""
    return {k: v for k, v in row.items() if v is None or isinstance(v, (int, float, str))}


def _without(options: Mapping[str, Any], keys: Collection[str]) -> str:
    """Options without some of them, as a text by which equal ones are found."""
    kept = {key: value for key, value in options.items() if key not in keys}
    return json.dumps(kept, sort_keys=True, default=str)

"""Tasks of a batch: checking runs and executing them; cores of parallel runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from protofl.errors import ProtoflError, UsageError
from protofl.federation import events as of_rounds
from protofl.records.layout import is_run
from protofl.runs.request.request import Request
from protofl.system.machine import usable_cores
from protofl.system.named_devices import names_several
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome
from protofl_workbench.batch.run_jobs import CheckJob, Job, RunJob


def shared_cores(
    requests: Sequence[Request], at_once: int | None, *, on_gpu: bool = False
) -> tuple[int, int]:
    """Return the number of parallel runs, and the number of hosts of each.

    With as many runs as cores, each run has one host in its own process. With fewer runs, each has
    several hosts.

    Args:
        requests: The runs.
        at_once: Parallel runs that the user asked for; 0 for one run in this process.
        on_gpu: True if the runs use a GPU; then one run at a time is the default.

    Returns:
        Both numbers; 0 hosts leaves the number to the run.
    """
    if at_once == 0:
        return 1, 0
    cores, count = len(usable_cores()), max(1, len(requests))
    workers = max((int(r.options.get("workers") or 0) for r in requests), default=0)
    most = at_once or (1 if on_gpu else max(1, cores // max(workers, 1)))
    most = min(most, count)
    return most, max(1, cores // most)


def with_hosts(request: Request, hosts: int) -> Request:
    """Return a request with a number of hosts, unless it sets its own backend, workers or GPUs.

    Results do not depend on the number of hosts.
    """
    options = request.options
    said = options.get("workers") or options.get("backend", "auto") != "auto"
    said = said or names_several(options.get("device", ""))  # one host per GPU
    if not hosts or said or "backend" in options.get("options", {}):
        return request
    place = {"backend": "local"} if hosts == 1 else {"workers": hosts}
    return replace(request, options={**options, **place})


class BatchSource(Protocol):
    """Gives a batch its runs one by one."""

    def next(self) -> BatchRun | None:
        """Return the next run; None if no run can start now.

        Called again after every run.
        """
        ...

    def run_ended(self, outcome: Outcome) -> None:
        """Take the outcome of a run."""
        ...


class BatchChecks:
    """Runs to check.

    Args:
        batch_runs: The runs.
        measure: True to measure steps.
        only_plan: True to leave out dry runs, and to report no events.
    """

    def __init__(
        self, batch_runs: Iterable[BatchRun], *, measure: bool, only_plan: bool = False
    ) -> None:
        self._waiting, self._measure = [*batch_runs][::-1], measure
        self._only_plan = only_plan
        self._count = len(self._waiting)
        self.found: dict[BatchRun, CheckedRun] = {}

    def next(self, follow: events.Follow) -> BatchRun | None:
        """Return the next run, if any."""
        return self._waiting.pop() if self._waiting else None

    def job(self, batch_run: BatchRun, runs: Path) -> Job:
        """Return the job of a run."""
        return CheckJob(batch_run.request, runs, self._measure, self._only_plan)

    def end(
        self, batch_run: BatchRun, outcome: CheckedRun | ProtoflError, follow: events.Follow
    ) -> None:
        """Store the result of a check."""
        if isinstance(outcome, ProtoflError):
            outcome = CheckedRun(batch_run, error=outcome)
        self.found[batch_run] = checked = replace(outcome, batch_run=batch_run)
        if not self._only_plan:
            follow(events.RunChecked(checked, len(self.found), self._count))


class RunExecution:
    """Runs to execute."""

    def __init__(
        self, source: BatchSource, *, hosts: int, group: str, repeat_diverged: bool = True
    ) -> None:
        self._source, self._hosts, self._group = source, hosts, group
        self._repeat_diverged = repeat_diverged
        self._known: dict[BatchRun, Outcome] = {}

    def next(self, follow: events.Follow) -> BatchRun | None:
        """Return the next run, if any."""
        if (batch_run := self._source.next()) is not None:
            self._known[batch_run] = Outcome(batch_run, "failed")
            follow(events.RunStarted(batch_run))
        return batch_run

    def job(self, batch_run: BatchRun, runs: Path) -> Job:
        """Return the job of a run."""
        request = with_hosts(batch_run.request, self._hosts)
        request = request.with_options(request.options, group=self._group)
        return RunJob(request, runs, self._repeat_diverged)

    def forward(self, batch_run: BatchRun, event: of_rounds.Event, follow: events.Follow) -> None:
        """Pass an event of a run on."""
        if isinstance(event, events.RunPlanned):
            about = (event.folder, False, event.seed, event.rounds, event.trials)
            self._known[batch_run] = Outcome(batch_run, "failed", *about)
        follow(events.OfRun(batch_run, event))

    def end(
        self, batch_run: BatchRun, outcome: Outcome | ProtoflError, follow: events.Follow
    ) -> None:
        """Pass the outcome on."""
        known = self._known.pop(batch_run)
        if isinstance(outcome, ProtoflError):
            begun = known.folder is not None and is_run(known.folder)
            final = replace(known, folder=known.folder if begun else None, error=outcome)
        else:
            final = replace(outcome, batch_run=batch_run)
        self._source.run_ended(final)
        follow(events.RunEnded(final))


Trial = tuple[str, int]
"""Identity of the run (without the seed), and seed of the trial."""


def _trials(checked: CheckedRun) -> set[Trial]:
    return {(checked.identity, checked.seed + trial) for trial in range(checked.trials)}


class OrderedRuns:
    """Runs in the given order; two runs with a common trial never run at the same time."""

    def __init__(self, checked: Sequence[CheckedRun]) -> None:
        self.outcomes: dict[BatchRun, Outcome] = {}
        todo = []
        for one in checked:
            if one.error is not None:
                self.outcomes[one.batch_run] = Outcome(one.batch_run, "failed", error=one.error)
            elif one.finished:
                self.outcomes[one.batch_run] = one.outcome("finished")
            else:
                todo.append(one)
        # Of runs with a common trial, the one with the most rounds is first; the others read it.
        first: dict[Trial, int] = {}
        for place, one in enumerate(todo):
            for trial in _trials(one):
                first.setdefault(trial, place)
        place_of = {one.batch_run: min(first[trial] for trial in _trials(one)) for one in todo}
        self._waiting = sorted(todo, key=lambda one: (place_of[one.batch_run], -one.rounds))
        self._going: dict[BatchRun, set[Trial]] = {}

    def next(self) -> BatchRun | None:
        """Return the next run that shares no trial with a running one."""
        busy = set[Trial]().union(*self._going.values())
        for one in self._waiting:
            if not busy & _trials(one):
                self._waiting.remove(one)
                self._going[one.batch_run] = _trials(one)
                return one.batch_run
        return None

    def run_ended(self, outcome: Outcome) -> None:
        """Store the outcome; runs that share a trial may start now."""
        del self._going[outcome.batch_run]
        self.outcomes[outcome.batch_run] = outcome


def check_error(checked: Iterable[CheckedRun]) -> UsageError | None:
    """Return the first error of checked runs, with the number of others; None if there is none."""
    wrong = [one for one in checked if one.error is not None]
    if not wrong:
        return None
    first, *others = wrong
    assert first.error is not None
    more = f" (and of {len(others)} more)" if others else ""
    error = first.error
    return UsageError(f"{first.batch_run.name}{more}: {error.what}", error.near, error.do)

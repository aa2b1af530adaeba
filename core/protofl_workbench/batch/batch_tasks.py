"""The tasks of a batch, and the cores of parallel runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from protofl.errors import ProtoflError, UsageError
from protofl.runs.request import Request
from protofl.system.machine import usable_cores
from protofl_workbench.batch import batch_events as events
from protofl_workbench.batch.batch_events import BatchRun, CheckedRun, Outcome, with_group
from protofl_workbench.batch.run_jobs import CheckJob, Job, RunJob


def shared_cores(
    requests: Sequence[Request], at_once: int | None, *, on_gpu: bool = False
) -> tuple[int, int]:
    """Return the number of parallel runs, and the number of hosts of each.

    A run that has one host has it in its own process: that is the most that a core can do. So where
    there are as many runs as cores, each has one; where there are fewer, hosts of theirs take the
    cores that are left.

    Args:
        requests: The runs.
        at_once: Runs at once, where the user says so; 0 for one in this process.
        on_gpu: Whether they compute on a GPU, where two would only be in each other's way.

    Returns:
        Both numbers; 0 hosts for as many as a run has by itself.
    """
    if at_once == 0:
        return 1, 0
    cores, count = len(usable_cores()), max(1, len(requests))
    own = max((int(r.options.get("workers") or 0) for r in requests), default=0)
    most = at_once or (1 if on_gpu else max(1, cores // max(own, 1)))
    most = min(most, count)
    return most, max(1, cores // most)


def with_hosts(request: Request, hosts: int) -> Request:
    """Return a request with a number of hosts, unless it sets its own backend or workers.

    Results depend on none of it: where they would, an engine trains several clients at once, and
    then there is one host whatever is asked for.
    """
    given = request.options
    said = given.get("workers") or given.get("backend", "auto") != "auto"
    if not hosts or said or "backend" in given.get("options", {}):
        return request
    place = {"backend": "local"} if hosts == 1 else {"workers": hosts}
    return replace(request, options={**given, **place})


class Source(Protocol):
    """Gives a batch its runs, one after the other."""

    def next(self) -> BatchRun | None:
        """The next run that is wanted; None where there is none now.

        It is asked again whenever a run has ended.
        """
        ...

    def should_continue(self, wanted: BatchRun, row: dict[str, Any]) -> bool:
        """Return True if a run continues after a round; called for earlier rounds too.

        Behind its last round it is finished, whatever is said here.
        """
        ...

    def run_ended(self, outcome: Outcome) -> None:
        """Take the outcome of a run."""
        ...


class RunChecks:
    """Runs that are tried, in any order."""

    def __init__(self, wanted: Iterable[BatchRun], *, measure: bool) -> None:
        self._waiting, self._measure = [*wanted][::-1], measure
        self._count = len(self._waiting)
        self.found: dict[BatchRun, CheckedRun] = {}

    def next(self, follow: events.Follow) -> BatchRun | None:
        """Return the next run, if any."""
        return self._waiting.pop() if self._waiting else None

    def job(self, wanted: BatchRun, runs: Path) -> Job:
        """Return the job of a run."""
        return CheckJob(wanted.request, runs, measure=self._measure)

    def forward(self, event: Any, follow: events.Follow) -> bool:  # noqa: ANN401 - one of several
        """Pass an event on."""
        follow(event)
        return True

    def end(
        self, wanted: BatchRun, found: CheckedRun | ProtoflError, follow: events.Follow
    ) -> None:
        """Keep what was found."""
        if isinstance(found, ProtoflError):
            found = CheckedRun(wanted, error=found)
        self.found[wanted] = tried = replace(found, batch_run=wanted)
        follow(events.RunChecked(tried, len(self.found), self._count))


class RunExecution:
    """Runs that are done."""

    def __init__(self, source: Source, *, hosts: int, group: str) -> None:
        self._source, self._hosts, self._group = source, hosts, group
        self._known: dict[BatchRun, Outcome] = {}

    def next(self, follow: events.Follow) -> BatchRun | None:
        """Return the next run, if any."""
        if (wanted := self._source.next()) is not None:
            self._known[wanted] = Outcome(wanted, "failed")
            follow(events.RunStarted(wanted))
        return wanted

    def job(self, wanted: BatchRun, runs: Path) -> Job:
        """Return the job of a run."""
        request = with_group(with_hosts(wanted.request, self._hosts), self._group)
        return RunJob(request, runs)

    def forward(self, event: Any, follow: events.Follow) -> bool:  # noqa: ANN401 - one of several
        """Pass an event on; after a round ask the source whether the run goes on."""
        known = self._known[event.batch_run]
        match event:
            case events.RunPlanned():
                known = replace(
                    known,
                    folder=event.folder,
                    seed=event.seed,
                    rounds=event.rounds,
                    trials=event.trials,
                )
            case events.FolderMade():
                known = replace(known, folder=event.folder)
        self._known[event.batch_run] = known
        follow(event)
        if not isinstance(event, events.RoundDone):
            return True
        # After its last round a run is finished, whatever the source says.
        goes_on = self._source.should_continue(event.batch_run, event.row)
        return goes_on or event.row["round"] + 1 == known.rounds

    def end(self, wanted: BatchRun, found: Outcome | ProtoflError, follow: events.Follow) -> None:
        """Pass the outcome on."""
        known = self._known.pop(wanted)
        if isinstance(found, ProtoflError):
            outcome = replace(known, error=found)
        elif found.state == "stopped":
            outcome = replace(known, state="stopped")
        else:
            outcome = replace(found, batch_run=wanted)
        self._source.run_ended(outcome)
        follow(events.RunEnded(outcome))


Trial = tuple[str, int]
"""Identity of the run, which does not include the seed, and the seed of a trial."""


def _trials(tried: CheckedRun) -> set[Trial]:
    return {(tried.identity, tried.seed + trial) for trial in range(tried.trials)}


class OrderedRuns:
    """Runs in the order in which they are wanted; a trial that is going on is not begun twice."""

    def __init__(self, tried: Sequence[CheckedRun]) -> None:
        self.outcomes = {one.batch_run: out for one in tried if (out := _known(one)) is not None}
        todo = [one for one in tried if one.batch_run not in self.outcomes]
        # Where a trial is wanted with several numbers of rounds it is done with the most first, and
        # then read.
        first: dict[Trial, int] = {}
        for place, one in enumerate(todo):
            for trial in _trials(one):
                first.setdefault(trial, place)
        place_of = {one.batch_run: min(first[trial] for trial in _trials(one)) for one in todo}
        self._waiting = sorted(todo, key=lambda one: (place_of[one.batch_run], -one.rounds))
        self._going: dict[BatchRun, set[Trial]] = {}

    def next(self) -> BatchRun | None:
        """The next run of whose trials none is going on."""
        busy = set[Trial]().union(*self._going.values())
        for one in self._waiting:
            if not busy & _trials(one):
                self._waiting.remove(one)
                self._going[one.batch_run] = _trials(one)
                return one.batch_run
        return None

    def should_continue(self, wanted: BatchRun, row: dict[str, Any]) -> bool:
        """Always."""
        return True

    def run_ended(self, outcome: Outcome) -> None:
        """Keep what became of it; another one of its trials may begin."""
        del self._going[outcome.batch_run]
        self.outcomes[outcome.batch_run] = outcome


def _known(tried: CheckedRun) -> Outcome | None:
    """Return the outcome of a run that is finished or has an error."""
    if tried.error is not None:
        return Outcome(tried.batch_run, "failed", error=tried.error)
    if tried.finished:
        return Outcome(
            tried.batch_run,
            "finished",
            tried.folder,
            reused=True,
            seed=tried.seed,
            rounds=tried.rounds,
            trials=tried.trials,
        )
    return None


def check_error(tried: Iterable[CheckedRun]) -> UsageError | None:
    """Return the first error of checked runs with the number of others; None for none."""
    wrong = [one for one in tried if one.error is not None]
    if not wrong:
        return None
    first, *others = wrong
    assert first.error is not None
    more = f" (and of {len(others)} more)" if others else ""
    error = first.error
    return UsageError(f"{first.batch_run.name}{more}: {error.what}", error.near, error.do)

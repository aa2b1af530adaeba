"""What a batch is at work on: runs that are tried, and runs that are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from protofl.errors import ProtoflError, UsageError
from protofl_workbench.batch import events
from protofl_workbench.batch.jobs import Do, Job, Try
from protofl_workbench.batch.sharing import placed
from protofl_workbench.batch.wanted import Outcome, Tried, Wanted, grouped


class Source(Protocol):
    """What is wanted, one after the other."""

    def next(self) -> Wanted | None:
        """The next run that is wanted; None where there is none now.

        It is asked again whenever a run has ended.
        """
        ...

    def goes_on(self, wanted: Wanted, row: dict[str, Any]) -> bool:
        """Whether a run goes on behind a round; asked in order, of rounds done before too.

        Behind its last round it is finished, whatever is said here.
        """
        ...

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""
        ...


class Tries:
    """Runs that are tried, in any order."""

    def __init__(self, wanted: Iterable[Wanted], *, measure: bool) -> None:
        self._waiting, self._measure = [*wanted][::-1], measure
        self._count = len(self._waiting)
        self.found: dict[Wanted, Tried] = {}

    def next(self, follow: events.Follow) -> Wanted | None:
        """Return the next run, if any."""
        return self._waiting.pop() if self._waiting else None

    def job(self, wanted: Wanted, runs: Path) -> Job:
        """Return the job of a run."""
        return Try(wanted.request, runs, measure=self._measure)

    def told(self, event: Any, follow: events.Follow) -> bool:  # noqa: ANN401 - one of several
        """Pass an event on."""
        follow(event)
        return True

    def end(self, wanted: Wanted, found: Tried | ProtoflError, follow: events.Follow) -> None:
        """Keep what was found."""
        if isinstance(found, ProtoflError):
            found = Tried(wanted, error=found)
        self.found[wanted] = tried = replace(found, wanted=wanted)
        follow(events.Trying(tried, len(self.found), self._count))


class Runs:
    """Runs that are done."""

    def __init__(self, source: Source, *, hosts: int, group: str) -> None:
        self._source, self._hosts, self._group = source, hosts, group
        self._known: dict[Wanted, Outcome] = {}

    def next(self, follow: events.Follow) -> Wanted | None:
        """Return the next run, if any."""
        if (wanted := self._source.next()) is not None:
            self._known[wanted] = Outcome(wanted, "failed")
            follow(events.Begun(wanted))
        return wanted

    def job(self, wanted: Wanted, runs: Path) -> Job:
        """Return the job of a run."""
        request = grouped(placed(wanted.request, self._hosts), self._group)
        return Do(request, runs)

    def told(self, event: Any, follow: events.Follow) -> bool:  # noqa: ANN401 - one of several
        """Pass an event on; after a round ask the source whether the run goes on."""
        known = self._known[event.wanted]
        match event:
            case events.Planned():
                known = replace(
                    known,
                    folder=event.folder,
                    seed=event.seed,
                    rounds=event.rounds,
                    trials=event.trials,
                )
            case events.FolderMade():
                known = replace(known, folder=event.folder)
        self._known[event.wanted] = known
        follow(event)
        if not isinstance(event, events.Row):
            return True
        # After its last round a run is finished, whatever the source says.
        goes_on = self._source.goes_on(event.wanted, event.row)
        return goes_on or event.row["round"] + 1 == known.rounds

    def end(self, wanted: Wanted, found: Outcome | ProtoflError, follow: events.Follow) -> None:
        """Pass the outcome on."""
        known = self._known.pop(wanted)
        if isinstance(found, ProtoflError):
            outcome = replace(known, error=found)
        elif found.state == "stopped":
            outcome = replace(known, state="stopped")
        else:
            outcome = replace(found, wanted=wanted)
        self._source.ended(outcome)
        follow(events.Ended(outcome))


Trial = tuple[str, int]
"""A trial by its run's identity, which leaves out the seed, and its seed."""


def _trials(tried: Tried) -> set[Trial]:
    return {(tried.identity, tried.seed + trial) for trial in range(tried.trials)}


class InOrder:
    """Runs in the order in which they are wanted; a trial that is going on is not begun twice."""

    def __init__(self, tried: Sequence[Tried]) -> None:
        self.outcomes = {one.wanted: out for one in tried if (out := _known(one)) is not None}
        todo = [one for one in tried if one.wanted not in self.outcomes]
        # Where a trial is wanted with several numbers of rounds it is done with the most first, and
        # then read.
        first: dict[Trial, int] = {}
        for place, one in enumerate(todo):
            for trial in _trials(one):
                first.setdefault(trial, place)
        place_of = {one.wanted: min(first[trial] for trial in _trials(one)) for one in todo}
        self._waiting = sorted(todo, key=lambda one: (place_of[one.wanted], -one.rounds))
        self._going: dict[Wanted, set[Trial]] = {}

    def next(self) -> Wanted | None:
        """The next run of whose trials none is going on."""
        busy = set[Trial]().union(*self._going.values())
        for one in self._waiting:
            if not busy & _trials(one):
                self._waiting.remove(one)
                self._going[one.wanted] = _trials(one)
                return one.wanted
        return None

    def goes_on(self, wanted: Wanted, row: dict[str, Any]) -> bool:
        """Always."""
        return True

    def ended(self, outcome: Outcome) -> None:
        """Keep what became of it; another one of its trials may begin."""
        del self._going[outcome.wanted]
        self.outcomes[outcome.wanted] = outcome


def _known(tried: Tried) -> Outcome | None:
    """What became of a run that need not, or can't, be begun."""
    if tried.error is not None:
        return Outcome(tried.wanted, "failed", error=tried.error)
    if tried.finished:
        return Outcome(
            tried.wanted,
            "finished",
            tried.folder,
            reused=True,
            seed=tried.seed,
            rounds=tried.rounds,
            trials=tried.trials,
        )
    return None


def mistakes(tried: Iterable[Tried]) -> UsageError | None:
    """The error for runs that can't be done: the first one's, and how many there are."""
    wrong = [one for one in tried if one.error is not None]
    if not wrong:
        return None
    first, *others = wrong
    assert first.error is not None
    more = f" (and of {len(others)} more)" if others else ""
    error = first.error
    return UsageError(f"{first.wanted.name}{more}: {error.what}", error.near, error.do)

"""What a batch is at work on: runs that are tried, and runs that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from protofl.batch import events
from protofl.batch.sharing import placed
from protofl.batch.wanted import Outcome, Tried, Wanted
from protofl.errors import ProtoflError, UsageError
from protofl.folder.failure import Failure
from protofl.request.request import Request

Message = Mapping[str, Any]


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


class Task(Protocol):
    """What hands are at work on: tries, or runs."""

    def next(self, follow: events.Follow) -> Wanted | None:
        """What is to be begun with now, if anything."""
        ...

    def order(self, wanted: Wanted) -> tuple[Request, dict[str, Any]]:
        """What is asked of a hand."""
        ...

    def told(self, wanted: Wanted, message: Message, follow: events.Follow) -> bool:
        """Take what is told in the middle; whether it goes on."""
        ...

    def end(
        self, wanted: Wanted, error: ProtoflError | None, message: Message, follow: events.Follow
    ) -> None:
        """Take what it came to."""
        ...


class Tries:
    """Runs that are tried, in any order."""

    def __init__(self, wanted: Iterable[Wanted], *, measure: bool) -> None:
        self._waiting, self._measure = [*wanted][::-1], measure
        self._count = len(self._waiting)
        self.found: dict[Wanted, Tried] = {}

    def next(self, follow: events.Follow) -> Wanted | None:
        """The next one, if any."""
        return self._waiting.pop() if self._waiting else None

    def order(self, wanted: Wanted) -> tuple[Request, dict[str, Any]]:
        """What is asked of a hand."""
        return wanted.request, {"do": "try", "measure": self._measure}

    def told(self, wanted: Wanted, message: Message, follow: events.Follow) -> bool:
        """Take what is told in the middle; whether it goes on."""
        if "note" in message:
            follow(events.Note(wanted, message["note"]))
        return True

    def end(
        self, wanted: Wanted, error: ProtoflError | None, message: Message, follow: events.Follow
    ) -> None:
        """Take what it came to."""
        known = {k: v for k, v in message.items() if k in Tried.__dataclass_fields__}
        known["folder"] = Path(known["folder"]) if known.get("folder") else None
        if ended := known.get("failed_before"):
            known["failed_before"] = Failure(**ended)
        self.found[wanted] = Tried(wanted, **{**known, "error": error})
        follow(events.Trying(self.found[wanted], len(self.found), self._count))


class Runs:
    """Runs that are done."""

    def __init__(self, source: Source, *, hosts: int, asks: bool) -> None:
        self._source, self._hosts, self._asks = source, hosts, asks
        self._about: dict[Wanted, dict[str, Any]] = {}

    def next(self, follow: events.Follow) -> Wanted | None:
        """The next one, if any."""
        if (wanted := self._source.next()) is not None:
            self._about[wanted] = {}
            follow(events.Begun(wanted))
        return wanted

    def order(self, wanted: Wanted) -> tuple[Request, dict[str, Any]]:
        """What is asked of a hand."""
        return placed(wanted.request, self._hosts), {"do": "run", "asks": self._asks}

    def told(self, wanted: Wanted, message: Message, follow: events.Follow) -> bool:
        """Take what is told in the middle; whether it goes on."""
        self._about[wanted] |= {k: v for k, v in message.items() if k in _ABOUT and v is not None}
        if "note" in message:
            follow(events.Note(wanted, message["note"]))
        elif "planned" in message:
            counts = {key: message[key] for key in ("rounds", "trials", "done")}
            follow(events.Planned(wanted, **counts))
        elif "training" in message:
            follow(events.Training(wanted, message["training"]))
        elif "row" in message:
            follow(events.Row(wanted, message["row"], message["before"]))
            goes_on = not message["asks"] or self._source.goes_on(wanted, message["row"])
            # Behind its last round a run is finished, whatever is thought of it.
            return goes_on or message["row"]["round"] + 1 == self._about[wanted]["rounds"]
        return True

    def end(
        self, wanted: Wanted, error: ProtoflError | None, message: Message, follow: events.Follow
    ) -> None:
        """Take what it came to."""
        about = {**self._about.pop(wanted), **message}
        folder = about.get("folder")
        outcome = Outcome(
            wanted,
            "failed" if error else about["state"],
            Path(folder) if folder else None,
            reused=about.get("reused", False),
            seed=about.get("seed", 0),
            rounds=about.get("rounds", 0),
            trials=about.get("trials", 1),
            error=error,
        )
        self._source.ended(outcome)
        follow(events.Ended(outcome))


_ABOUT = ("folder", "seed", "rounds", "trials")
"""What is told of a run, and kept for its end."""


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

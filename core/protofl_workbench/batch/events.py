"""What a batch tells while it goes on; it is called with one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl_workbench.batch.wanted import Outcome, Tried, Wanted


class Event:
    """What has happened."""


@dataclass(frozen=True)
class Trying(Event):
    """A run has been tried.

    Attributes:
        tried: What was found of it.
        done: Runs that have been tried.
        of: Runs that are to be.
    """

    tried: Tried
    done: int
    of: int


@dataclass(frozen=True)
class Begun(Event):
    """A run is taken up: it begins, goes on, or is read if it is there."""

    wanted: Wanted


@dataclass(frozen=True)
class Planned(Event):
    """A run that is taken up is to be trained.

    Attributes:
        wanted: The run.
        rounds: Its rounds in each trial.
        trials: Its trials.
        done: Rounds that are done.
        seed: The seed of its first trial.
        folder: Its folder, if it has rounds already.
    """

    wanted: Wanted
    rounds: int
    trials: int
    done: int
    seed: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class FolderMade(Event):
    """A new run has its folder."""

    wanted: Wanted
    folder: Path


@dataclass(frozen=True)
class Training(Event):
    """Clients train in a round; at most once a second.

    Attributes:
        wanted: The run.
        share: Share of the round's local training that is done, 0 to 1.
    """

    wanted: Wanted
    share: float


@dataclass(frozen=True)
class Row(Event):
    """A round is over.

    Attributes:
        wanted: The run.
        row: Of its line of ``metrics.jsonl`` what is one number or text; ``seconds`` its whole.
        before: Whether the round was done before the run was taken up again.
    """

    wanted: Wanted
    row: dict[str, Any]
    before: bool


@dataclass(frozen=True)
class Note(Event):
    """A line for the user.

    Attributes:
        wanted: The run that it is about.
        text: The line.
    """

    wanted: Wanted
    text: str


@dataclass(frozen=True)
class Ended(Event):
    """A run is finished, has failed, or was stopped."""

    outcome: Outcome


@dataclass(frozen=True)
class Ending(Event):
    """The batch is interrupted; runs that go on are ended in order.

    Attributes:
        runs: How many there are.
    """

    runs: int


Follow = Callable[[Event], None]
"""Called with every event of a batch, in the thread that does it."""


def ignore(event: Event) -> None:
    """What follows a batch that nobody watches."""

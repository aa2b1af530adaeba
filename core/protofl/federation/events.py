"""Events of a run: `pf.run(progress=…)` is called with each of them.

Order: ``Planned``, ``DryRunStarted``, ``FolderMade``; in every round ``RoundStarted``,
``StageStarted`` with its ``ClientDone``, and ``RoundDone``; at the end
``Finished``. A ``Note`` may come at any time. A resumed run makes no folder, and has a dry run
only if further trials start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan
    from protofl.records.result import Result
    from protofl.records.row import Row
    from protofl.records.run_folder import RunFolder

__all__ = [
    "ClientDone",
    "DryRunStarted",
    "Event",
    "Finished",
    "FolderMade",
    "Note",
    "Planned",
    "RoundDone",
    "RoundStarted",
    "StageStarted",
]


class Event:
    """An event of a run."""


@dataclass(frozen=True)
class Note(Event):
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class Planned(Event):
    """The run is planned; the folder of a resumed run has its rows."""

    plan: Plan
    folder: RunFolder


@dataclass(frozen=True)
class DryRunStarted(Event):
    """The dry run starts: two short rounds on throw-away copies."""


@dataclass(frozen=True)
class FolderMade(Event):
    """The run folder exists, after a successful dry run."""

    folder: RunFolder


@dataclass(frozen=True)
class RoundStarted(Event):
    """A round starts."""

    trial: int
    round: int


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage of the round starts.

    Attributes:
        stage: ``train``, ``server``, ``evaluate`` or ``checkpoint``; with a phase after the
            server's step, ``train`` twice.
        jobs: Clients that are to do it; 0 for the server's step.
    """

    stage: str
    jobs: int


@dataclass(frozen=True)
class ClientDone(Event):
    """A client has finished its part of a stage; clients finish in any order."""

    stage: str
    client: int


@dataclass(frozen=True)
class RoundDone(Event):
    """A round is finished and, if it has a checkpoint, committed.

    Where a thread writes the checkpoint, this comes while the next round trains.

    Attributes:
        row: Its line of ``metrics.jsonl``.
    """

    row: Row


@dataclass(frozen=True)
class Finished(Event):
    """All rounds are done."""

    result: Result
    plan: Plan


Progress = Callable[[Event], None]
"""Called with every event of a run, in the thread that runs it."""


def ignore(event: Event) -> None:
    """Ignore an event."""

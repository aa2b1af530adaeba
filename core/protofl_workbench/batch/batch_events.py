"""Runs of a batch, their outcomes, and the events of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from protofl.errors import ProtoflError
from protofl.federation import events
from protofl.records.failure import Failure
from protofl.records.row import Row
from protofl.runs.request.request import Request
from protofl_workbench.recorded.recorded_run import Run, load_run


@dataclass(frozen=True, eq=False)
class BatchRun:
    """A run of a batch.

    Attributes:
        name: Name on the screen: ``tau=10 · seed 0``.
        request: Request for `protofl.runs.resume.reuse`. Its ``out`` is ignored: all runs of a
            batch are in the folder of runs.
    """

    name: str
    request: Request


@dataclass(frozen=True)
class CheckedRun:
    """A run that has been checked before any training.

    Attributes:
        batch_run: The run.
        error: Why the run cannot be done, if so.
        identity: Identity of the run; runs with the same identity and seed are the same run.
        folder: Folder of an existing run, finished or not.
        done: Finished rounds of all trials.
        seed: Seed of the first trial.
        rounds: Requested rounds of each trial.
        trials: Requested trials.
        device: Device of the run.
        steps: Mini-batches of all clients, as far as they are known before training.
        scores_server: True if the record may have an accuracy of the server's model.
        seconds: Estimated time of the remaining rounds with one host; None if not measured.
        failed_before: Failure of an unfinished run that would fail again, if any.
    """

    batch_run: BatchRun
    error: ProtoflError | None = None
    identity: str = ""
    folder: Path | None = None
    done: int = 0
    seed: int = 0
    rounds: int = 0
    trials: int = 1
    device: str = "cpu"
    steps: int = 0
    scores_server: bool = False
    seconds: float | None = None
    failed_before: Failure | None = None

    @property
    def finished(self) -> bool:
        """True if all rounds are done."""
        return 0 < self.rounds * self.trials <= self.done

    def outcome(self, state: State, error: ProtoflError | None = None) -> Outcome:
        """Return the outcome of a run that is not started."""
        place = (self.folder, self.finished, self.seed, self.rounds, self.trials)
        return Outcome(self.batch_run, state, *place, error)


State = Literal["finished", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        batch_run: The run.
        state: ``finished`` or ``failed``. Finished rounds are in the folder.
        folder: The run folder; None if the run failed before its first round.
        reused: True if the run was already finished.
        seed: Seed of the first trial.
        rounds: Requested rounds of each trial; the folder may have more.
        trials: Requested trials; the folder may have more.
        error: Why the run failed.
    """

    batch_run: BatchRun
    state: State
    folder: Path | None = None
    reused: bool = False
    seed: int = 0
    rounds: int = 0
    trials: int = 1
    error: ProtoflError | None = None

    @cached_property
    def run(self) -> Run:
        """The recorded run with the requested trials and rounds."""
        assert self.folder is not None, "the run failed before its first round"
        run = load_run(self.folder)
        first = self.seed - int(run.config["seed"])
        return run.part(range(first, first + self.trials), self.rounds)


@dataclass(frozen=True)
class RunPlanned(events.Event):
    """`protofl.events.Planned` without the plan, for another process.

    Attributes:
        rounds: Rounds of each trial.
        trials: Number of trials.
        seed: Seed of the first trial.
        folder: The run folder, which a new run has not made yet.
        rows: The finished rounds of a resumed run.
    """

    rounds: int
    trials: int
    seed: int
    folder: Path
    rows: tuple[Row, ...] = ()


class Event:
    """An event of a batch."""


@dataclass(frozen=True)
class RunChecked(Event):
    """A run has been checked.

    Attributes:
        checked: The result.
        done: Number of checked runs so far.
        of: Number of runs to check.
    """

    checked: CheckedRun
    done: int
    of: int


@dataclass(frozen=True)
class RunStarted(Event):
    """A run starts, resumes, or is read if it is finished."""

    batch_run: BatchRun


@dataclass(frozen=True)
class OfRun(Event):
    """An event of a run: ``RunPlanned``, or one of ``FolderMade``, ``RoundDone`` and ``Note``.

    Attributes:
        batch_run: The run.
        event: The event, see `protofl.events`.
    """

    batch_run: BatchRun
    event: events.Event


@dataclass(frozen=True)
class RunEnded(Event):
    """A run is finished or has failed."""

    outcome: Outcome


@dataclass(frozen=True)
class BatchStopping(Event):
    """The batch is interrupted and stops this number of running runs."""

    runs: int


Follow = Callable[[Event], None]
"""Called with every event of a batch, in the thread of the batch."""


def ignore(event: Event) -> None:
    """Ignore an event."""

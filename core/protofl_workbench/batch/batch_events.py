"""The runs of a batch, their outcomes, and the events of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from protofl.errors import ProtoflError
from protofl.records.failure import Failure
from protofl.runs.recorded_run import Run, load_run
from protofl.runs.request import Request


@dataclass(frozen=True, eq=False)
class BatchRun:
    """A run of a batch.

    Attributes:
        name: What it is called on the screen, ``tau=10 · seed 0``.
        request: What `protofl.runs.reuse` is to be asked for. Its ``out`` counts for nothing:
            all runs of a batch are in the runs' folder.
    """

    name: str
    request: Request


@dataclass(frozen=True)
class CheckedRun:
    """A checked run, before any training.

    Attributes:
        batch_run: The run.
        error: Why it can't be done; None where it can.
        identity: Its identity; runs of one identity and seed are one run.
        folder: Where it is already, in part or as a whole.
        done: Rounds of it that are done, of all trials.
        seed: The seed of its first trial.
        rounds: Rounds of each trial that are asked for.
        trials: Trials that are asked for.
        device: Where it computes.
        steps: Mini-batches that all of its clients train on, as far as they are known beforehand.
        scores_server: Whether its record may have an accuracy of the server's model.
        seconds: What the rest of it takes with one host, by measured steps; None where nothing was
            measured (`protofl_workbench.batch.run_batch.Batch.check_all`).
        failed_before: Why it ended where it is unfinished, and would end again; None for nothing.
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


State = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        batch_run: The run.
        state: ``finished``; ``failed``; or ``stopped``, as
            `Source.should_continue` decided; its finished rounds are in the folder.
        folder: Where it is; None where it failed before it began.
        reused: Whether it was there already as a whole.
        seed: The seed of its first trial.
        rounds: Rounds of each trial that were asked for; its folder may have more.
        trials: Trials that were asked for; its folder may have more.
        error: Why it failed.
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
        assert self.folder is not None, "it failed before it began"
        whole = load_run(self.folder)
        first = self.seed - int(whole.config["seed"])
        return whole.part(range(first, first + self.trials), self.rounds)


def with_group(request: Request, group: str) -> Request:
    """The request, whose trackers, where it has some, put it under a name with others.

    Args:
        request: A request.
        group: The name; empty for none. One that the request has stays.
    """
    options = request.options
    if not (group and options.get("track")) or options.get("track_group"):
        return request
    return replace(request, options={**options, "track_group": group})


class Event:
    """An event of a batch."""


@dataclass(frozen=True)
class RunChecked(Event):
    """A run has been checked.

    Attributes:
        checked: What was found of it.
        done: Runs that have been tried.
        of: Runs that are to be.
    """

    checked: CheckedRun
    done: int
    of: int


@dataclass(frozen=True)
class RunStarted(Event):
    """A run starts, resumes, or is read if it is finished."""

    batch_run: BatchRun


@dataclass(frozen=True)
class RunPlanned(Event):
    """A run will be trained.

    Attributes:
        batch_run: The run.
        rounds: Its rounds in each trial.
        trials: Its trials.
        done: Rounds that are done.
        seed: The seed of its first trial.
        folder: Its folder, if it has rounds already.
    """

    batch_run: BatchRun
    rounds: int
    trials: int
    done: int
    seed: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class FolderMade(Event):
    """The folder of a new run exists."""

    batch_run: BatchRun
    folder: Path


@dataclass(frozen=True)
class TrainingProgress(Event):
    """Clients train in a round; at most once a second.

    Attributes:
        batch_run: The run.
        share: Share of the round's local training that is done, 0 to 1.
    """

    batch_run: BatchRun
    share: float


@dataclass(frozen=True)
class RoundDone(Event):
    """A round is finished.

    Attributes:
        batch_run: The run.
        row: Of its line of ``metrics.jsonl`` what is one number or text; ``seconds`` its whole.
        before: Whether the round was done before the run was taken up again.
    """

    batch_run: BatchRun
    row: dict[str, Any]
    before: bool


@dataclass(frozen=True)
class Note(Event):
    """A line for the user.

    Attributes:
        batch_run: The run that it is about.
        text: The line.
    """

    batch_run: BatchRun
    text: str


@dataclass(frozen=True)
class RunEnded(Event):
    """A run is finished, has failed, or was stopped."""

    outcome: Outcome


@dataclass(frozen=True)
class BatchStopping(Event):
    """The batch is interrupted; runs that go on are ended in order.

    Attributes:
        runs: How many there are.
    """

    runs: int


Follow = Callable[[Event], None]
"""Called with every event of a batch, in the thread that does it."""


def ignore(event: Event) -> None:
    """Ignore an event."""

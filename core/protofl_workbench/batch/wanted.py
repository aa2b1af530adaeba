"""What a batch is asked for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from protofl.errors import ProtoflError
from protofl.records.failure import Failure
from protofl.runs.recorded_run import Run, load_run
from protofl.runs.request import Request


@dataclass(frozen=True, eq=False)
class Wanted:
    """A run that is wanted.

    Attributes:
        name: What it is called on the screen, ``tau=10 · seed 0``.
        request: What `protofl.runs.reuse` is to be asked for. Its ``out`` counts for nothing:
            all runs of a batch are in the runs' folder.
    """

    name: str
    request: Request


@dataclass(frozen=True)
class Tried:
    """What was found of a run that is wanted, before anything was trained.

    Attributes:
        wanted: The run.
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
            measured (`protofl_workbench.batch.batch.Batch.try_all`).
        failed_before: Why it ended where it is unfinished, and would end again; None for nothing.
    """

    wanted: Wanted
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
        """Whether nothing is left to do."""
        return 0 < self.rounds * self.trials <= self.done


State = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run that was wanted.

    Attributes:
        wanted: The run.
        state: ``finished``; ``failed``; or ``stopped``, as
            `protofl_workbench.batch.batch.Source.goes_on` said; its finished rounds are in the
            folder.
        folder: Where it is; None where it failed before it began.
        reused: Whether it was there already as a whole.
        seed: The seed of its first trial.
        rounds: Rounds of each trial that were asked for; its folder may have more.
        trials: Trials that were asked for; its folder may have more.
        error: Why it failed.
    """

    wanted: Wanted
    state: State
    folder: Path | None = None
    reused: bool = False
    seed: int = 0
    rounds: int = 0
    trials: int = 1
    error: ProtoflError | None = None

    @cached_property
    def run(self) -> Run:
        """The run as it is recorded: the trials and rounds that were asked for."""
        assert self.folder is not None, "it failed before it began"
        whole = load_run(self.folder)
        first = self.seed - int(whole.config["seed"])
        return whole.part(range(first, first + self.trials), self.rounds)


def grouped(request: Request, group: str) -> Request:
    """The request, whose trackers, where it has some, put it under a name with others.

    Args:
        request: A request.
        group: The name; empty for none. One that the request has stays.
    """
    options = request.options
    if not (group and options.get("track")) or options.get("track_group"):
        return request
    return replace(request, options={**options, "track_group": group})

"""Several clients whose training an engine does together, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from protofl.errors import RunFailure
from protofl.hosts.jobs import Reply
from protofl.hosts.train_job import TrainJob
from protofl.hosts.training import Trained, Training, trained_by
from protofl.plugin.choice import Choice


def trains_groups(engine: Choice) -> bool:
    """Whether an engine trains several clients at once."""
    return "train_group" in engine.hooks


def chunks(engine: Choice, architectures: list[str]) -> list[list[int]]:
    """The positions of clients to train together.

    Raises:
        RunFailure: The engine left one out, or named it twice.
    """
    found = engine.call("choose_groups", architectures=architectures)
    if sorted(place for places in found or [] for place in places) != [*range(len(architectures))]:
        raise RunFailure(
            f"engine {engine.name!r}: choose_groups must name every client once",
            f"it returned {found!r} for {len(architectures)} clients",
        )
    return [list(places) for places in found]


def several(engine: Choice, trainings: list[Training]) -> list[Reply]:
    """Carry out the work on several clients, phase by phase; their replies in order."""
    replies: dict[int, Reply] = {}
    steps: dict[int, Callable[[], TrainJob]] = {
        number: partial(next, training) for number, training in enumerate(trainings)
    }
    while steps:
        jobs: dict[int, TrainJob] = {}
        for number, step in steps.items():
            try:
                jobs[number] = step()
            except StopIteration as stop:
                replies[number] = stop.value
        steps = {}
        # Clients may be in different phases: one may lack what another's phase needs.
        for phase in dict.fromkeys(job.phase.name for job in jobs.values()):
            same = {number: job for number, job in jobs.items() if job.phase.name == phase}
            try:
                found = _train_group(engine, list(same.values()))
            except Exception as error:
                first = next(iter(same))
                trainings[first].throw(error)  # raises, with the client's name
                raise
            for (number, _), trained in zip(same.items(), found, strict=True):
                steps[number] = partial(trainings[number].send, trained)
    return [replies[number] for number in range(len(trainings))]


def _train_group(engine: Choice, jobs: list[TrainJob]) -> list[Trained]:
    if len(jobs) == 1:
        return [trained_by(engine, jobs[0])]
    start = time.perf_counter()
    found: list[Any] = engine.call("train_group", jobs=jobs)
    seconds = (time.perf_counter() - start) / len(jobs)
    pairs = zip(jobs, found, strict=True)
    return [Trained(sums, seconds, job.notes) for job, sums in pairs]

"""Driving the work on clients: one at a time, or several whose training an engine does together.

A client's work is a generator that yields every `TrainJob` and waits for what the engine made of
it. So the same lines of `protofl.hosts.training` serve one client and a group in lock-step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protofl.errors import RunFailure
from protofl.hosts.jobs import Reply
from protofl.hosts.train_job import TrainJob
from protofl.plugin.choice import Choice


@dataclass
class Trained:
    """What an engine made of a `TrainJob`: sums of loss terms, seconds, lines for the user."""

    sums: dict[str, float]
    seconds: float
    notes: list[str] = field(default_factory=list)


Training = Generator[TrainJob, Trained, Reply]
"""The work on one client."""


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


def alone(engine: Choice, training: Training) -> Reply:
    """Carry out the work on one client."""
    step: Callable[[], TrainJob] = partial(next, training)
    while True:
        try:
            job = step()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            trained = _train(engine, job)
        except Exception as error:
            step = _thrown(training, error)
        else:
            step = _sent(training, trained)


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
                _thrown(trainings[first], error)()  # raises, with the client's name
                raise
            for (number, _), trained in zip(same.items(), found, strict=True):
                steps[number] = _sent(trainings[number], trained)
    return [replies[number] for number in range(len(trainings))]


def _sent(training: Training, trained: Trained) -> Callable[[], TrainJob]:
    return partial(training.send, trained)


def _thrown(training: Training, error: Exception) -> Callable[[], TrainJob]:
    return partial(training.throw, error)


def _train(engine: Choice, job: TrainJob) -> Trained:
    start = time.perf_counter()
    with job.stream():
        sums = engine.call("train", job=job)
    return Trained(sums, time.perf_counter() - start, job.notes)


def _train_group(engine: Choice, jobs: list[TrainJob]) -> list[Trained]:
    if len(jobs) == 1:
        return [_train(engine, jobs[0])]
    start = time.perf_counter()
    found: list[Any] = engine.call("train_group", jobs=jobs)
    seconds = (time.perf_counter() - start) / len(jobs)
    pairs = zip(jobs, found, strict=True)
    return [Trained(sums, seconds, job.notes) for job, sums in pairs]

"""Local training of clients: downloads, the phases of the method, and uploads.

The work on a client is a generator that yields each `TrainJob` and receives its result from the
engine. So the same code trains one client or several clients together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from protofl.data.batches import Samples, bounds_by_epoch, training_batches, training_table
from protofl.errors import RunFailure, error_context, error_text
from protofl.federation.clients.train_job import TrainJob
from protofl.federation.jobs.jobs import Evaluate, Reply, Train, TrainReply
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.modules import parameter_groups
from protofl.hooks.plugin.members import Choice
from protofl.hooks.transport.payload_validation import DownloadValidation
from protofl.hooks.transport.rules import check_size
from protofl.hooks.views.batch import Batch, Output
from protofl.hooks.views.client import Client
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.run_info import Phase
from protofl.hooks.wire.payload import Payload
from protofl.system.clocks import Clock, NoProfile
from protofl.system.randomness import global_stream

Sums = dict[str, float]
"""Sums of a client's loss terms over its samples."""

Trained = tuple[Sums, float]
"""Result of an engine for a `TrainJob`: sums of loss terms, and its seconds."""

Training = Generator[TrainJob, Trained, Reply]
"""The work on one client."""


def by_engine(engine: Choice, jobs: list[TrainJob]) -> list[Sums]:
    """Run an engine on the job of one client or of several clients."""
    if len(jobs) > 1:
        result: list[Sums] = engine.call("train_group", jobs=jobs)
        return result
    with jobs[0].stream():
        return [engine.bound("train", job=jobs[0])()]


def train_clients(engine: Choice, trainings: Sequence[Training]) -> list[Reply]:
    """Run the trainings of clients phase by phase; return their replies in order.

    Args:
        engine: The engine.
        trainings: The work on each client.
    """
    replies: dict[int, Reply] = {}
    results: dict[int, Any] = dict.fromkeys(range(len(trainings)))  # a generator starts with None
    while results:
        jobs: dict[int, TrainJob] = {}
        for number, trained in results.items():
            try:
                jobs[number] = trainings[number].send(trained)
            except StopIteration as stop:
                replies[number] = stop.value
        results = {}
        # Clients may be in different phases: one may lack what another's phase needs.
        for phase in dict.fromkeys(job.phase.name for job in jobs.values()):
            same = [number for number, job in jobs.items() if job.phase.name == phase]
            try:
                group_results = _timed(engine, [jobs[number] for number in same])
            except BaseException as error:
                ended = isinstance(error, GeneratorExit)  # would close the generator
                thrown = RunFailure(error_text(error)) if ended else error
                trainings[same[0]].throw(thrown)  # raises, with the client's name
                raise
            results.update(zip(same, group_results, strict=True))
    return [replies[number] for number in range(len(trainings))]


def _timed(engine: Choice, jobs: list[TrainJob]) -> list[Trained]:
    """Return the sums of loss terms and the seconds of each client."""
    start = time.perf_counter()
    sums_by_job = by_engine(engine, jobs)
    seconds = (time.perf_counter() - start) / len(jobs)
    return [(sums, seconds) for sums, _ in zip(sums_by_job, jobs, strict=True)]


class Trainer:
    """Trains clients as a run's methods say.

    Args:
        plan: The run.
        profile: Takes where the time goes.
        read: Makes a client's download of its bytes.
    """

    def __init__(self, plan: Plan, profile: NoProfile, read: DownloadValidation) -> None:
        self._plan, self._profile, self._read = plan, profile, read
        self._phases = plan.composition.phases(plan.info)
        self._keeps_download = plan.composition.has_follow_up(plan.info)

    def train(self, state: ClientState, asked: Train, clock: Clock) -> Training:
        """Run all phases of one stage of the round, then create the upload.

        Args:
            state: The client.
            asked: What is to be done.
            clock: Books seconds by stage.
        """
        plan, reply = self._plan, TrainReply(clock.seconds)
        client = Client(state, plan.composition.main)
        place = f"client {state.id}, round {asked.round + 1}"
        state.round = asked.round
        if not asked.keep_received:
            with error_context(f"download, {place}"):
                state.received = self._read(asked.blob, client)
        clock.lap("payload")
        self._begin(state, client, place)
        for phase in self._phases:
            if phase.when == asked.when and self._takes_place(phase, state):
                rate = plan.rate(state.round)
                yield from self._phase(state, phase, clock, reply, rate)
        spent = state.feature_seconds
        clock.lap("train", less=spent)
        if asked.when == "before_upload":
            with error_context(f"upload_payload, {place}"), torch.no_grad():
                payload = Payload(plan.composition.call("upload_payload", client=client))
                check_size(payload, plan.settings.upload_limit)
            with error_context(f"encode_upload, {place}"), torch.no_grad():
                reply.floats, reply.blob = plan.composition.upload.pack(payload, client=client)
        state.end_work(keep_received=self._keeps_download)
        clock.lap("payload", less=state.feature_seconds - spent)
        clock.seconds["prototypes"], state.feature_seconds = state.feature_seconds, 0.0
        return reply

    def fine_tune(
        self,
        state: ClientState,
        download: Payload,
        asked: Evaluate,
        clock: Clock,
    ) -> Training:
        """Run the phases on a client's own samples before its upload, at the run's learning rate.

        Args:
            state: The client.
            download: What it received.
            asked: For how many epochs, and in which round.
            clock: Books seconds by stage.
        """
        reply, state.round, state.received = TrainReply(clock.seconds), asked.round, download
        place = f"client {state.id}, fine-tuning after round {asked.round + 1}"
        self._begin(state, Client(state, self._plan.composition.main), place)
        for phase in self._phases:
            is_private = (phase.when, phase.data) == ("before_upload", "private")
            if is_private and self._takes_place(phase, state):
                trains = phase.fine_tunes or phase.trains
                tuning = replace(phase, epochs=asked.epochs, trains=trains)
                yield from self._phase(state, tuning, clock, reply, 1.0)
        state.end_work(keep_received=False)
        return reply

    def _begin(self, state: ClientState, client: Client, place: str) -> None:
        state.begin_work()
        with error_context(f"receive, {place}"):
            self._plan.composition.lifecycle("receive", client=client)

    def _takes_place(self, phase: Phase, state: ClientState) -> bool:
        """Return True if the phase has a loss term, and the download has what the phase needs."""
        if not self._plan.composition.terms_of(phase):
            return False
        return phase.needs is None or phase.needs in state.received

    def _phase(
        self,
        state: ClientState,
        phase: Phase,
        clock: Clock,
        reply: TrainReply,
        rate: float,
    ) -> Generator[TrainJob, Trained, None]:
        """Prepare a phase, yield its job to the engine, and add the result to the reply."""
        composition = self._plan.composition
        client = Client(state, composition.main)
        state.lr_factor = rate
        place = f"client {state.id}, round {state.round + 1}"
        job, seen = self._job(state, phase, client, rate)
        state.set_mode(True)
        clock.lap("train")
        trainer, start = composition.trainer, time.perf_counter()
        hook = "train" if trainer else "local_loss"
        with error_context(f"{hook}, {place}"), self._profile.steps() as job.lap:
            with job.stream() if trainer else nullcontext():
                own = trainer.call("train", client=client, job=job) if trainer else None
            sums, seconds = (yield job) if own is None else (own, time.perf_counter() - start)
        clock.lap("train", took=seconds)
        reply.samples += seen
        reply.notes += job.notes
        for label, value in sums.items():
            reply.sums[label] = reply.sums.get(label, 0.0) + value
        state.set_mode(False)
        state.weights_changed()
        keys = ("after-training", state.round, state.id, phase.name)
        self._call("after_training", keys, state, client)

    def _call(
        self, hook: str, keys: tuple[str | int, ...], state: ClientState, client: Client
    ) -> dict[str, Any]:
        """Call the hook of all methods before or after a phase, with a random stream of its own."""
        if not self._plan.composition.has(hook):
            return {}
        place = f"{hook}, client {state.id}, round {state.round + 1}"
        with global_stream(state.seed, *keys), error_context(place), torch.no_grad():
            return self._plan.composition.lifecycle(hook, client=client)

    def _job(
        self, state: ClientState, phase: Phase, client: Client, rate: float
    ) -> tuple[TrainJob, int]:
        """Return the job for the engine, and the number of samples that it will see."""
        plan, settings = self._plan, self._plan.settings
        samples = self._samples(state, phase, client)
        epochs = 1 if plan.dry else (phase.epochs or settings.local_epochs)
        bounds = bounds_by_epoch(len(samples), settings.batch_size, settings.drop_last, epochs)
        sizes = [stop - start for epoch in bounds for start, stop in epoch]
        state.steps, state.epoch_steps = len(sizes), len(bounds[0])
        keys = ("before-training", state.round, state.id, phase.name)
        prepared = self._call("before_training", keys, state, client)
        place = f"before_training, client {state.id}, round {state.round + 1}"
        with error_context(place), torch.no_grad():
            loss = plan.composition.loss(client, prepared, phase)
        slots = dict(state.slots())
        groups = parameter_groups(state.model, slots, settings.lr, rate, phase.trains)
        order: dict[str, Any] = {
            "epochs": epochs,
            "batch_size": settings.batch_size,
            "drop_last": settings.drop_last,
            "shuffle": settings.shuffle,
            "seed": state.seed,
            "keys": (phase.name, state.round, state.id),
            "augment": settings.augment and phase.data == "private",
        }
        job = TrainJob(
            model=state.model,
            groups=groups,
            loss=loss,
            after_batch=self._after_batch(client),
            optimizer=settings.optimizer,
            momentum=settings.momentum,
            clip=settings.clip,
            precision=settings.precision,
            device=plan.device,
            phase=phase,
            batch_size=settings.batch_size,
            drawn=lambda: training_batches(samples, **order),
            sizes=sizes,
            table=lambda: training_table(samples, **order),
            client_state=state,
            weight_decay=settings.weight_decay,
            optimizer_options=settings.options.get("optimizer", {}),
            scheduled=plan.scheduled,
            epochs=epochs,
            augment=order["augment"],
            checks=plan.checks_steps,
        )
        return job, sum(sizes)

    def _samples(self, state: ClientState, phase: Phase, client: Client) -> Samples:
        samples = state.train if phase.data == "private" else state.public
        if samples is None:
            raise RunFailure(
                f"phase {phase.name!r} trains on public data and the run has none",
                "a method with needs_public = True gets public samples in every run",
                "write needs_public = True in the method, or run with --public N",
            )
        for place in (state.received, client.state):
            if phase.rows is not None and phase.rows in place:
                return samples.at(place[phase.rows])
        return samples

    def _after_batch(self, client: Client) -> Callable[[Batch, Output], None] | None:
        composition = self._plan.composition
        if not composition.has("after_batch"):
            return None

        def collect(batch: Batch, output: Output) -> None:
            if type(output) is Output:  # an engine's own kind of output copies what is read of it
                output = Output(output.features.detach(), output.logits.detach())
            composition.lifecycle("after_batch", client=client, batch=batch, output=output)

        return collect

"""Local training of one client: its download, the phases of its method, its upload.

The work is a generator that yields each `TrainJob` and waits for what the engine made of it. So
the same lines serve one client (`alone`) and several that are trained together
(`protofl.hosts.groups`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

import torch

from protofl.data.batches import Samples, batch_bounds
from protofl.errors import RunFailure, naming
from protofl.hosts.clock import Clock
from protofl.hosts.jobs import Reply, Train, TrainReply
from protofl.hosts.train_job import TrainJob
from protofl.plan.plan import Plan
from protofl.plugin.choice import Choice
from protofl.profile.spans import HostProfile
from protofl.randomness import global_stream
from protofl.views.batch import Batch, Output
from protofl.views.client import Client
from protofl.views.records import ClientRecord
from protofl.views.run import Phase
from protofl.wire.payload import Payload

Read = Callable[[bytes, torch.device], Payload]
"""Makes a download of its bytes; the dry step's notes who looks for what."""


@dataclass
class Trained:
    """What an engine made of a `TrainJob`: sums of loss terms, seconds, lines for the user."""

    sums: dict[str, float]
    seconds: float
    notes: list[str] = field(default_factory=list)


Training = Generator[TrainJob, Trained, Reply]
"""The work on one client."""


def alone(engine: Choice, training: Training) -> Reply:
    """Carry out the work on one client."""
    step: Callable[[], TrainJob] = partial(next, training)
    while True:
        try:
            job = step()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            step = partial(training.send, trained_by(engine, job))
        except Exception as error:
            step = partial(training.throw, error)


def trained_by(engine: Choice, job: TrainJob) -> Trained:
    """Have an engine train one client."""
    start = time.perf_counter()
    with job.stream():
        sums = engine.bound("train")(job=job)
    return Trained(sums, time.perf_counter() - start, job.notes)


@dataclass
class _Totals:
    """What the phases of a client's training add up to."""

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, samples: int, trained: Trained) -> None:
        self.samples += samples
        self.notes += trained.notes
        for label, value in trained.sums.items():
            self.sums[label] = self.sums.get(label, 0.0) + value


class Trainer:
    """Trains clients as a run's methods say.

    Args:
        plan: The run.
        profile: Takes where the time goes.
        dry: Whether this is the dry step: one epoch of one batch.
        read: Makes a download of its bytes.
    """

    def __init__(self, plan: Plan, profile: HostProfile, *, dry: bool, read: Read) -> None:
        self._plan, self._profile, self._dry, self._read = plan, profile, dry, read
        self._phases = plan.composition.phases(plan.info)
        self.after_server = any(phase.when == "after_server" for phase in self._phases)
        """Whether clients train after the server's step too, with the same download."""

    def train(self, record: ClientRecord, asked: Train, clock: Clock) -> Training:
        """All phases of a time of the round, and the upload.

        Args:
            record: The client.
            asked: What is to be done.
            clock: Books seconds by stage.
        """
        plan, totals = self._plan, _Totals()
        client = Client(record, plan.composition.main)
        place = f"client {record.id}, round {asked.round}"
        record.round = asked.round
        if not asked.keep_received:
            with naming(f"download, {place}"):
                record.received = self._read(asked.blob, plan.device)
        clock.lap("payload")
        record.begin_work()
        with naming(f"receive, {place}"):
            plan.composition.lifecycle("receive", client=client)
        for phase in self._phases:
            if phase.when == asked.when and self._takes_place(phase, record):
                totals.add(*(yield from self._phase(record, phase, clock)))
        spent = record.feature_seconds
        clock.lap("train", less=spent)
        payload = Payload()
        if asked.when == "before_upload":
            upload = self._profile.operators("upload")
            with upload, naming(f"upload_payload, {place}"), torch.no_grad():
                payload = Payload(plan.composition.call("upload_payload", client=client))
        data = payload.to_bytes()
        record.end_work(keep_received=self.after_server)
        clock.lap("payload", less=record.feature_seconds - spent)
        clock.seconds["prototypes"], record.feature_seconds = record.feature_seconds, 0.0
        return TrainReply(
            clock.seconds,
            samples=totals.samples,
            sums=totals.sums,
            floats=payload.floats,
            notes=totals.notes,
            blob=data,
        )

    def _takes_place(self, phase: Phase, record: ClientRecord) -> bool:
        """Whether there is something to train by: what the phase needs, and a term of it."""
        if not self._plan.composition.terms_of(phase):
            return False
        return phase.needs is None or phase.needs in record.received

    def _phase(
        self, record: ClientRecord, phase: Phase, clock: Clock
    ) -> Generator[TrainJob, Trained, tuple[int, Trained]]:
        """Prepare a phase, have it trained, conclude it; samples seen, and what training did."""
        composition = self._plan.composition
        client = Client(record, composition.main)
        place = f"client {record.id}, round {record.round}"
        job, seen = self._job(record, phase, client)
        record.set_mode(True)
        clock.lap("train")
        laps = self._profile.phases(record.steps)
        title = f"{phase.name} steps"
        with naming(f"local_loss, {place}"), self._profile.spans.span(title, "engine"):
            job.lap = laps or job.lap
            done = yield job
            if laps is not None:
                laps.finish()
        clock.restart(train=done.seconds)
        record.set_mode(False)
        record.weights_changed()
        keys = ("after-training", record.round, record.id, phase.name)
        with global_stream(record.seed, *keys), naming(f"after_training, {place}"):
            with torch.no_grad():
                composition.lifecycle("after_training", client=client)
        return seen, done

    def _job(self, record: ClientRecord, phase: Phase, client: Client) -> tuple[TrainJob, int]:
        """What the engine is asked to do, and the samples that it will see."""
        plan, settings = self._plan, self._plan.settings
        samples = self._samples(record, phase)
        epochs = 1 if self._dry else (phase.epochs or settings.local_epochs)
        bounds = batch_bounds(len(samples), settings.batch_size, settings.drop_last)
        record.steps = epochs * len(bounds)
        keys = ("before-training", record.round, record.id, phase.name)
        place = f"before_training, client {record.id}, round {record.round}"
        with global_stream(record.seed, *keys), naming(place), torch.no_grad():
            given = plan.composition.lifecycle("before_training", client=client)
            loss = plan.composition.loss(client, given, phase)
        job = TrainJob(
            model=record.model,
            groups=record.parameter_groups(settings.lr),
            loss=loss,
            after_batch=self._after_batch(client),
            optimizer=settings.optimizer,
            momentum=settings.momentum,
            clip=settings.clip,
            precision=settings.precision,
            device=plan.device,
            phase=phase,
            samples=samples,
            epochs=epochs,
            batch_size=settings.batch_size,
            drop_last=settings.drop_last,
            seed=record.seed,
            keys=(phase.name, record.round, record.id),
            augment=settings.augment and phase.data == "private",
            record=record,
        )
        return job, epochs * bounds[-1][1]

    def _samples(self, record: ClientRecord, phase: Phase) -> Samples:
        samples = record.train if phase.data == "private" else record.public
        if samples is None:
            raise RunFailure(f"phase {phase.name!r} trains on public data and the run has none")
        if phase.rows is not None and phase.rows in record.received.keys():
            samples = samples.at(record.received[phase.rows])
        return samples.first(self._plan.settings.batch_size) if self._dry else samples

    def _after_batch(self, client: Client) -> Callable[[Batch, Output], None] | None:
        composition = self._plan.composition
        if not composition.has("after_batch"):
            return None

        def collect(batch: Batch, output: Output) -> None:
            seen = Output(output.features.detach(), output.logits.detach())
            composition.lifecycle("after_batch", client=client, batch=batch, output=seen)

        return collect

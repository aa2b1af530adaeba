"""Hosts: where clients live. A host executes jobs and answers with payload bytes and scalars."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from protofl import together
from protofl.client import Batch, Output
from protofl.composition import naming
from protofl.data.batches import batch_bounds
from protofl.errors import RunFailure
from protofl.info import Phase
from protofl.jobs import Job, Reply, TrainJob, autocast
from protofl.parties import ClientRecord
from protofl.payload import Payload
from protofl.plan import Plan
from protofl.randomness import global_stream
from protofl.storage import load_client, save_client


class Host:
    """Clients and the work on them, in one process.

    Args:
        plan: The run.
        dry: Whether this is the dry step, in which every epoch is cut to client 0's first batch.
    """

    def __init__(self, plan: Plan, *, dry: bool = False) -> None:
        self.plan = plan
        self.dry = dry
        self.asked: set[str] = set()
        """Keys that hooks looked for in the last client's download and did not find."""
        self.missed: set[str] = set()
        """The same in its evaluation."""
        self._clients: dict[int, ClientRecord] = {}
        self._files: dict[int, Path] = {}
        self._trial = 0
        self._phases = plan.composition.phases(plan.info)

    def handle(self, job: Job) -> Reply:
        """Do a job with one thread, as rounding depends on their number.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        with one_thread():
            operation = getattr(self, job.op)
            if job.client is None:
                return operation(**job.values)  # type: ignore[no-any-return]
            return operation(job.client, job.blob, **job.values)  # type: ignore[no-any-return]

    def handle_many(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        """Do clients' jobs, several at a time where the engine trains groups; yield as done.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        engine = self.plan.parts["engine"]
        if not jobs or jobs[0].op != "train" or not together.trains_groups(engine):
            for job in jobs:
                yield job, self.handle(job)
            return
        names = [self.plan.info.architecture_of(job.client or 0).name for job in jobs]
        for places in together.chunks(engine, names):
            chosen = [jobs[place] for place in places]
            with one_thread():
                steps = [self._training(j.client or 0, j.blob, **j.values) for j in chosen]
                replies = together.several(engine, steps)
            yield from zip(chosen, replies, strict=True)

    # --- operations -----------------------------------------------------------------------------

    def start_trial(self, trial: int, files: Mapping[str, str]) -> Reply:
        """Forget all clients; those in ``files`` are loaded when they are first needed."""
        self._clients.clear()
        self._trial = trial
        self._files = {int(client): Path(path) for client, path in files.items()}
        return Reply({"split": self.plan.split(trial).hash})

    def train(
        self, client: int, blob: bytes, round: int, when: str, keep_received: bool = False
    ) -> Reply:
        """Local training of one client, and its upload."""
        training = self._training(client, blob, round, when, keep_received)
        return together.alone(self.plan.parts["engine"], training)

    def _training(
        self, client: int, blob: bytes, round: int, when: str, keep_received: bool = False
    ) -> together.Training:
        """What `train` does, waiting for the engine at every `TrainJob` that it yields."""
        clock = _Clock()
        record = self._client(client)
        clock.lap("setup")
        view, composition = record.view(self.plan.composition.main), self.plan.composition
        place = f"client {client}, round {round}"
        record.round = round
        if not keep_received:
            record.received = Payload.from_bytes(blob, self.plan.device)
        clock.lap("payload")
        record.forget_scratch()
        record.weights_changed()
        record.set_mode(False)
        with naming(f"receive, {place}"):
            composition.lifecycle("receive", client=view)
        sums: dict[str, float] = {}
        notes: list[str] = []
        samples = 0
        for phase in self._phases:
            if phase.when == when and self._takes_place(phase, record):
                count, done = yield from self._train_phase(record, phase, clock)
                samples += count
                notes += done.notes
                for label, value in done.sums.items():
                    sums[label] = sums.get(label, 0.0) + value
        spent = record.feature_seconds
        clock.lap("train", less=spent)
        payload = Payload()
        if when == "before_upload":
            with naming(f"upload_payload, {place}"), torch.no_grad():
                payload = Payload(composition.call("upload_payload", client=view))
        data = payload.to_bytes()
        self.asked = record.received.asked
        record.forget_scratch()
        record.weights_changed()
        if not self._after_server:
            record.received = Payload()
        clock.lap("payload", less=record.feature_seconds - spent)
        clock.seconds["prototypes"], record.feature_seconds = record.feature_seconds, 0.0
        return Reply(
            {
                "samples": samples,
                "sums": sums,
                "floats": payload.floats,
                "seconds": clock.seconds,
                "notes": notes,
            },
            data,
        )

    def evaluate(self, client: int, blob: bytes, round: int) -> Reply:
        """Score one client on its test samples with a download; changes nothing."""
        clock = _Clock()
        record = self._client(client)
        clock.lap("setup")
        composition = self.plan.composition
        view = record.view(composition.main)
        with record.unchanged() if composition.has("receive") else record.same_download():
            record.received, record.round = Payload.from_bytes(blob, self.plan.device), round
            correct = torch.zeros((), dtype=torch.int64, device=self.plan.device)
            place = f"client {client}, evaluation of round {round}"
            with naming(f"receive, {place}"):
                composition.lifecycle("receive", client=view)
            record.set_mode(False)
            start = 0
            with torch.no_grad(), naming(f"inference, {place}"):
                for x in record.test.chunks(record.architecture.eval_batch):
                    with autocast(self.plan.settings.precision, self.plan.device):
                        scores = composition.call("inference", client=view, x=x)
                    hits = scores.argmax(1) == record.test.y[start : start + len(x)]
                    correct += hits.sum()
                    start += len(x)
            self.missed = record.received.asked
        clock.lap("evaluate")
        return Reply({"correct": int(correct), "count": len(record.test), "seconds": clock.seconds})

    def save(self, client: int, blob: bytes, path: str) -> Reply:
        """Write a client's weights and state."""
        clock = _Clock()
        save_client(self._client(client), Path(path), received=self._after_server)
        clock.lap("checkpoint")
        return Reply({"seconds": clock.seconds})

    # --- within ---------------------------------------------------------------------------------

    @property
    def _after_server(self) -> bool:
        return any(phase.when == "after_server" for phase in self._phases)

    def _client(self, client: int) -> ClientRecord:
        record = self._clients.get(client)
        if record is None:
            record = self._clients[client] = self._build(client)
        return record

    def _build(self, client: int) -> ClientRecord:
        """A client that has never trained is its seed; another one comes from its file."""
        plan, trial = self.plan, self._trial
        architecture = plan.info.architecture_of(client)
        layout = architecture.channels_last
        split = plan.split(trial)
        rows = split.train(client)
        if self.dry:
            rows = split.train(0)[: plan.settings.batch_size]
        public = plan.public_samples(trial, layout)
        if self.dry and public is not None:
            public = public.first(plan.settings.batch_size)
        record = ClientRecord(
            id=client,
            info=plan.info,
            architecture=architecture,
            seed=plan.seed(trial),
            device=plan.device,
            configs=plan.composition.configs,
            train=plan.samples(rows, layout),
            test=plan.samples(rows if self.dry else split.test(client), layout),
            public=public,
            model=plan.initial_model(client, trial),
        )
        view = record.view(plan.composition.main)
        with global_stream(plan.seed(trial), "setup", client), naming(f"setup_client {client}"):
            plan.composition.lifecycle("setup_client", client=view)
        if client in self._files:
            load_client(record, self._files[client])
        return record

    def _takes_place(self, phase: Phase, record: ClientRecord) -> bool:
        """Whether there is something to train by: what the phase needs, and a term of it."""
        if not self.plan.composition.terms_of(phase):
            return False
        return phase.needs is None or phase.needs in record.received

    def _train_phase(
        self, record: ClientRecord, phase: Phase, clock: _Clock
    ) -> Generator[TrainJob, together.Trained, tuple[int, together.Trained]]:
        """Prepare a phase, have it trained, conclude it; samples seen, and what training did."""
        plan, settings = self.plan, self.plan.settings
        samples = record.train if phase.data == "private" else record.public
        if samples is None:
            raise RunFailure(f"phase {phase.name!r} trains on public data and the run has none")
        if phase.rows is not None and phase.rows in record.received.keys():
            samples = samples.at(record.received[phase.rows])
        if self.dry:
            samples = samples.first(settings.batch_size)
        epochs = 1 if self.dry else (phase.epochs or settings.local_epochs)
        batch = settings.batch_size
        bounds = batch_bounds(len(samples), batch, settings.drop_last)
        record.steps = epochs * len(bounds)
        seen = epochs * bounds[-1][1]
        view = record.view(plan.composition.main)
        place = f"client {record.id}, round {record.round}"
        keys = ("before-training", record.round, record.id, phase.name)
        with global_stream(record.seed, *keys), naming(f"before_training, {place}"):
            with torch.no_grad():
                draws = plan.composition.lifecycle("before_training", client=view)
        job = TrainJob(
            model=record.model,
            groups=record.parameter_groups(settings.lr),
            loss=plan.composition.loss(record.view, draws, phase),
            after_batch=self._after_batch(record),
            optimizer=settings.optimizer,
            momentum=settings.momentum,
            precision=settings.precision,
            device=plan.device,
            phase=phase,
            samples=samples,
            epochs=epochs,
            batch_size=batch,
            drop_last=settings.drop_last,
            seed=record.seed,
            keys=(phase.name, record.round, record.id),
            augment=settings.augment and phase.data == "private",
            record=record,
        )
        record.set_mode(True)
        clock.lap("train")
        with naming(f"local_loss, {place}"):
            done = yield job
        clock.restart(train=done.seconds)
        record.set_mode(False)
        record.weights_changed()
        keys = ("after-training", record.round, record.id, phase.name)
        with global_stream(record.seed, *keys), naming(f"after_training, {place}"):
            with torch.no_grad():
                plan.composition.lifecycle("after_training", client=view)
        return seen, done

    def _after_batch(self, record: ClientRecord) -> Any:  # noqa: ANN401 - a callable or None
        composition = self.plan.composition
        if not composition.has("after_batch"):
            return None
        view = record.view(composition.main)

        def collect(batch: Batch, output: Output) -> None:
            seen = Output(output.features.detach(), output.logits.detach())
            composition.lifecycle("after_batch", client=view, batch=batch, output=seen)

        return collect


class one_thread:
    """Compute with one thread inside, as rounding depends on their number."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        torch.set_num_threads(self._before)


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str, less: float = 0.0) -> None:
        """Book the time since the last lap; ``less`` of it is booked elsewhere."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last - less
        self._last = now

    def restart(self, **booked: float) -> None:
        """Leave the time since the last lap out, and book these seconds in its place."""
        for stage, seconds in booked.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._last = time.perf_counter()

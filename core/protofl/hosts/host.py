"""Hosts: where clients live. A host executes jobs and answers with payload bytes and scalars."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from protofl.cores import compute_threads, deterministic_kernels
from protofl.data.batches import batch_bounds
from protofl.errors import RunFailure
from protofl.hosts import groups as together
from protofl.hosts.jobs import Job, Reply, TrainJob, autocast
from protofl.hosts.store import ClientStore, store_kind
from protofl.plan.plan import Plan
from protofl.plugin.composition import naming
from protofl.profile.spans import HostProfile, Spans
from protofl.randomness import global_stream
from protofl.views.architecture import SplitModel, unset_model
from protofl.views.client import Batch, Output
from protofl.views.records import ClientRecord
from protofl.views.run import Phase
from protofl.wire.payload import Payload


class Host:
    """Clients and the work on them, in one process.

    Args:
        plan: The run.
        dry: Whether this is the dry step, in which every epoch is cut to client 0's first batch.
    """

    def __init__(self, plan: Plan, *, dry: bool = False) -> None:
        self.plan = plan
        self.dry = dry
        self.asked: dict[str, str] = {}
        """Keys that hooks looked for in this round's downloads and did not find, with the hook."""
        self.missed: dict[str, str] = {}
        """The same in the evaluation of the last client."""
        self._asked_in = -1
        self._trial = 0
        self._phases = plan.composition.phases(plan.info)
        self._profile = HostProfile(plan.settings.profile and not dry, plan.device)
        self._store = ClientStore(
            store_kind(plan.settings.client_store, plan.device, dry=dry),
            plan.info,
            self._build,
            received=self._after_server,
            reuse=not plan.composition.has("setup_client"),
        )

    def handle(self, job: Job) -> Reply:
        """Do a job with one thread, as rounding depends on their number.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        start, values = time.perf_counter_ns(), dict(job.values)
        self._profile.sample = bool(values.pop("sample", False))
        with compute_threads(1), deterministic_kernels(self.plan.settings.deterministic):
            operation = getattr(self, job.op)
            if job.client is None:
                return operation(**values)  # type: ignore[no-any-return]
            reply: Reply = operation(job.client, job.blob, **values)
        if self._profile.spans.on:
            name = self.plan.info.architecture_of(job.client).name
            title = f"{job.op} client {job.client} ({name})"
            told = {"client": job.client, "architecture": name, "round": values.get("round", -1)}
            reply.values["profile"] = self._profile.job_done(title, start, **told)
        return reply

    def handle_many(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        """Do clients' jobs, several at a time where the engine trains groups; yield as done.

        A profiled run does one at a time, as it tells of clients and of their steps.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        engine, single = self.plan.choices["engine"], self._profile.spans.on
        if single or not jobs or jobs[0].op != "train" or not together.trains_groups(engine):
            for job in jobs:
                yield job, self.handle(job)
            return
        names = [self.plan.info.architecture_of(job.client or 0).name for job in jobs]
        for places in together.chunks(engine, names):
            chosen = [jobs[place] for place in places]
            with compute_threads(1), deterministic_kernels(self.plan.settings.deterministic):
                steps = [self._training(j.client or 0, j.blob, **j.values) for j in chosen]
                replies = together.several(engine, steps)
            yield from zip(chosen, replies, strict=True)

    def warm_up(self) -> None:
        """Import what building the clients' models imports, while the run still prepares itself."""
        info = self.plan.info
        with suppress(Exception):  # the dry step words what is wrong with a model
            for architecture in info.architectures:
                unset_model(architecture, info.sample, info.num_classes, info.feature_dim)

    # --- operations -----------------------------------------------------------------------------

    def start_trial(self, trial: int, files: Mapping[str, str], parked: str | None = None) -> Reply:
        """Forget all clients; those in ``files`` have trained before.

        Args:
            trial: The trial.
            files: {client: the file in which it lies}; they are read and never changed.
            parked: A folder for files of clients that this host keeps on disk.
        """
        self._trial = trial
        self._store.start({int(client): Path(path) for client, path in files.items()}, parked)
        return Reply({"split": self.plan.split(trial).hash})

    def train(
        self, client: int, blob: bytes, round: int, when: str, keep_received: bool = False
    ) -> Reply:
        """Local training of one client, and its upload."""
        training = self._training(client, blob, round, when, keep_received)
        return together.alone(self.plan.choices["engine"], training)

    def _training(
        self, client: int, blob: bytes, round: int, when: str, keep_received: bool = False
    ) -> together.Training:
        """What `train` does, waiting for the engine at every `TrainJob` that it yields."""
        clock = _Clock(self._profile.spans)
        with self._store.lent(client, trains=True) as record:
            clock.lap("setup")
            reply = yield from self._train(record, blob, round, when, keep_received, clock)
        clock.lap("checkpoint")
        return reply

    def evaluate(self, client: int, blob: bytes, round: int) -> Reply:
        """Score one client on its test samples with a download; changes nothing."""
        clock = _Clock(self._profile.spans)
        with self._store.lent(client, trains=False) as record:
            clock.lap("setup")
            correct = self._score(record, blob, round)
            count = len(record.test)
        clock.lap("evaluate")
        return Reply({"correct": correct, "count": count, "seconds": clock.seconds})

    def save(self, client: int, blob: bytes, path: str) -> Reply:
        """Write a client's weights and state."""
        clock = _Clock(self._profile.spans)
        self._store.save(client, Path(path))
        clock.lap("checkpoint")
        return Reply({"seconds": clock.seconds})

    def load(self, client: int, blob: bytes, path: str) -> Reply:
        """From now on a client is what `save` wrote to a file, which stays there until then."""
        self._store.load(client, Path(path))
        return Reply({"seconds": {}})

    def drop(self, client: int, blob: bytes) -> Reply:
        """Forget a client: it is its seed again."""
        self._store.drop(client)
        return Reply({"seconds": {}})

    # --- within ---------------------------------------------------------------------------------

    @property
    def _after_server(self) -> bool:
        return any(phase.when == "after_server" for phase in self._phases)

    def _client(self, client: int) -> ClientRecord:
        return self._store.record(client)

    def _build(self, client: int, model: SplitModel | None) -> ClientRecord:
        """A client as its seed says; ``model`` is one to take, whose weights are another's."""
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
            model=plan.initial_model(client, trial) if model is None else model,
            spans=self._profile.spans,
        )
        view = record.view(plan.composition.main)
        with global_stream(plan.seed(trial), "setup", client), naming(f"setup_client {client}"):
            plan.composition.lifecycle("setup_client", client=view)
        return record

    def _train(
        self,
        record: ClientRecord,
        blob: bytes,
        round: int,
        when: str,
        keep_received: bool,
        clock: _Clock,
    ) -> together.Training:
        view, composition = record.view(self.plan.composition.main), self.plan.composition
        place = f"client {record.id}, round {round}"
        record.round = round
        if not keep_received:
            with naming(f"download, {place}"):
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
            upload = self._profile.operators("upload")
            with upload, naming(f"upload_payload, {place}"), torch.no_grad():
                payload = Payload(composition.call("upload_payload", client=view))
        data = payload.to_bytes()
        self._note_asked(record)
        record.forget_scratch()
        record.weights_changed()
        record.steps = 0
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

    def _note_asked(self, record: ClientRecord) -> None:
        if record.round != self._asked_in:
            self.asked, self._asked_in = {}, record.round
        self.asked |= record.received.asked

    def _score(self, record: ClientRecord, blob: bytes, round: int) -> int:
        """Correct predictions; the client stays what it was."""
        composition = self.plan.composition
        view = record.view(composition.main)
        with record.unchanged() if composition.has("receive") else record.same_download():
            record.received, record.round = Payload.from_bytes(blob, self.plan.device), round
            correct = torch.zeros((), dtype=torch.int64, device=self.plan.device)
            place = f"client {record.id}, evaluation of round {round}"
            with naming(f"receive, {place}"):
                composition.lifecycle("receive", client=view)
            record.set_mode(False)
            start = 0
            scoring = self._profile.operators("evaluate")
            with scoring, torch.no_grad(), naming(f"inference, {place}"):
                for x in record.test.chunks(record.architecture.eval_batch):
                    with autocast(self.plan.settings.precision, self.plan.device):
                        scores = composition.call("inference", client=view, x=x)
                    hits = scores.argmax(1) == record.test.y[start : start + len(x)]
                    correct += hits.sum()
                    start += len(x)
            self.missed = record.received.asked
        record.forget_scratch()
        return int(correct)

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
            clip=settings.clip,
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
        record.received.reader = ""  # from here on local_loss reads, of whichever method
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


class _Clock:
    """Seconds by stage."""

    def __init__(self, spans: Spans) -> None:
        self.seconds: dict[str, float] = {}
        self._spans = spans
        self._last = time.perf_counter()

    def lap(self, stage: str, less: float = 0.0) -> None:
        """Book the time since the last lap; ``less`` of it is booked elsewhere."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last - less
        if self._spans.on:
            self._spans.add(stage, "stage", round(self._last * 1e9), round(now * 1e9))
        self._last = now

    def restart(self, **booked: float) -> None:
        """Leave the time since the last lap out, and book these seconds in its place."""
        for stage, seconds in booked.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        now = time.perf_counter()
        if self._spans.on:
            title = " and ".join(booked)
            self._spans.add(title, "stage", round(self._last * 1e9), round(now * 1e9))
        self._last = now

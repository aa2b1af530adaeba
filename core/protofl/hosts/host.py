"""Hosts: where clients live. A host executes jobs and answers with payload bytes and scalars."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from protofl.cores import compute_threads, deterministic_kernels
from protofl.errors import naming
from protofl.hosts import groups
from protofl.hosts.clock import Clock
from protofl.hosts.jobs import Job, Reply
from protofl.hosts.store import ClientStore, store_kind
from protofl.hosts.train_job import autocast
from protofl.hosts.training import Trainer
from protofl.plan.plan import Plan
from protofl.profile.spans import HostProfile
from protofl.randomness import global_stream
from protofl.views.architecture import SplitModel, unset_model
from protofl.views.client import Client
from protofl.views.records import ClientRecord
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
        self.missed: dict[str, str] = {}
        """Keys that the evaluation of the last client looked for and did not find."""
        self._trial = 0
        self._profile = HostProfile(plan.settings.profile and not dry, plan.device)
        self.trainer = Trainer(plan, self._profile, dry=dry)
        self._store = ClientStore(
            store_kind(plan.settings.client_store, plan.device, dry=dry),
            plan.info,
            self._build,
            received=self.trainer.after_server,
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
        if single or not jobs or jobs[0].op != "train" or not groups.trains_groups(engine):
            for job in jobs:
                yield job, self.handle(job)
            return
        names = [self.plan.info.architecture_of(job.client or 0).name for job in jobs]
        for places in groups.chunks(engine, names):
            chosen = [jobs[place] for place in places]
            with compute_threads(1), deterministic_kernels(self.plan.settings.deterministic):
                steps = [self._training(j.client or 0, j.blob, **j.values) for j in chosen]
                replies = groups.several(engine, steps)
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
        return groups.alone(self.plan.choices["engine"], training)

    def _training(
        self, client: int, blob: bytes, round: int, when: str, keep_received: bool = False
    ) -> groups.Training:
        """What `train` does, waiting for the engine at every `TrainJob` that it yields."""
        clock = Clock(self._profile.spans)
        with self._store.lent(client, trains=True) as record:
            clock.lap("setup")
            reply = yield from self.trainer.train(record, blob, round, when, keep_received, clock)
        clock.lap("checkpoint")
        return reply

    def evaluate(self, client: int, blob: bytes, round: int) -> Reply:
        """Score one client on its test samples with a download; changes nothing."""
        clock = Clock(self._profile.spans)
        with self._store.lent(client, trains=False) as record:
            clock.lap("setup")
            correct = self._score(record, blob, round)
            count = len(record.test)
        clock.lap("evaluate")
        return Reply({"correct": correct, "count": count, "seconds": clock.seconds})

    def save(self, client: int, blob: bytes, path: str) -> Reply:
        """Write a client's weights and state."""
        clock = Clock(self._profile.spans)
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
        view = Client(record, plan.composition.main)
        with global_stream(plan.seed(trial), "setup", client), naming(f"setup_client {client}"):
            plan.composition.lifecycle("setup_client", client=view)
        return record

    def _score(self, record: ClientRecord, blob: bytes, round: int) -> int:
        """Correct predictions; the client stays what it was."""
        composition = self.plan.composition
        view = Client(record, composition.main)
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

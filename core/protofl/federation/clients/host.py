"""Hosts: they store clients, execute jobs, and answer with payload bytes and plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from protofl.errors import (
    Late,
    RunFailure,
    error_context,
    less_memory,
    memory_problem,
)
from protofl.federation.clients.client_store import ClientStore, store_kind
from protofl.federation.clients.evaluation import score
from protofl.federation.clients.local_training import Trainer, Training, train_clients
from protofl.federation.jobs import jobs as work
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.plugin.members import Choice
from protofl.hooks.transport.payload_validation import DownloadValidation, Read
from protofl.hooks.transport.rules import printable
from protofl.hooks.views.client import Client
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.wire.payload import BadUpload, Payload
from protofl.system.clocks import UNPROFILED, Clock
from protofl.system.device import compute_threads
from protofl.system.files.atomic import disk_errors
from protofl.system.files.tensors import Packed
from protofl.system.machine import time_limit
from protofl.system.randomness import global_stream
from protofl.system.torch_state import standard_torch
from protofl.system.transfers import free_memory, has_streams, size_of


@standard_torch()
def build_client(
    plan: Plan, trial: int, client: int, model: SplitModel | None = None, secret: bytes = b""
) -> ClientState:
    """Build a client of a trial; ``model`` is a used model to fill with its weights, or None."""
    architecture = plan.info.architecture_of(client)
    layout = architecture.channels_last
    split, public = plan.split(trial), plan.public_samples(trial, layout)
    held = split.held_out(client)
    state = ClientState(
        id=client,
        domain=plan.domain_of(client, trial),
        variance=plan.variance(trial),
        lr=plan.settings.lr,
        info=plan.info,
        architecture=architecture,
        seed=plan.seed(trial),
        device=plan.device,
        configs=plan.composition.configs,
        train=plan.samples(split.train(client), layout, trial),
        test=plan.samples(split.test(client), layout, trial),
        validation=None if held is None else plan.samples(held, layout, trial),
        balanced=plan.balanced_samples(trial, layout),
        public=public,
        secret=secret,
        secretive=plan.composition.secretive,
        hidden=plan.composition.hidden,
        model=plan.initial_model(client, trial) if model is None else model,
    )
    view, labels = Client(state, plan.composition.main), state.train.y
    with error_context(f"train_labels, client {client}"):
        new_labels = plan.composition.pass_on("train_labels", "labels", labels, client=view)
        if new_labels is not labels:
            from protofl.hooks.malicious import checked_labels

            state.train.y = checked_labels(new_labels, labels, plan.info.num_classes)
    with (
        global_stream(plan.seed(trial), "setup", client),
        error_context(f"setup_client {client}"),
    ):
        plan.composition.lifecycle("setup_client", client=view)
    return state


def chunks(engine: Choice, architectures: list[str]) -> list[list[int]]:
    """Return the positions of clients to train together.

    Raises:
        RunFailure: The engine left one out, or named it twice.
    """
    groups = engine.call("choose_groups", architectures=architectures)
    if sorted(place for places in groups or [] for place in places) != [*range(len(architectures))]:
        raise RunFailure(
            f"engine {engine.name!r}: choose_groups must name every client once",
            f"it returned {groups!r} for {len(architectures)} clients",
        )
    return [list(places) for places in groups]


def _clients(jobs: Sequence[work.Job]) -> list[int]:
    """Return the clients that train or are evaluated."""
    return [job.client for job in jobs if isinstance(job, work.RoundJob)]


def go_on(job: work.Job) -> str:
    """Return the advice for a job that does not end."""
    return Late.GO_ON if isinstance(job, work.RoundJob) else ""


@dataclass
class _Trial:
    """The trial of a host."""

    number: int = 0


class Host:
    """Clients and their jobs in one process; a `Pool` of itself.

    Args:
        plan: The run.
        read: Makes a download of its tensors, as hooks see it.
        secret: Secret bytes of this machine, for `Client.secret_stream`; empty in a simulation.

    Attributes:
        unwritten: See `protofl.federation.jobs.pool_interface.LeavesFiles`.
        one_by_one: Whether clients train one at a time with every engine, as in the dry run.
        secret: As given. A host of machines that a server does not own sets it before each job, to
            one that holds all on which the job's uploads depend besides the download.
    """

    unwritten: dict[str, Packed] | None = None

    def __init__(self, plan: Plan, *, read: Read = Payload, secret: bytes = b"") -> None:
        declared = plan.composition.declarations("download_payload")
        codec = plan.composition.download
        self.plan, self._read = (
            plan,
            DownloadValidation(plan.info, declared, codec, read, dry=plan.dry),
        )
        self.report: Callable[[str], None] = lambda line: None
        self.one_by_one = plan.dry
        self.secret = secret
        self._profile = UNPROFILED
        if plan.settings.profile and not plan.dry:
            from protofl.system.profile import HostProfile

            self._profile = HostProfile(plan.device)
        self._trainer = Trainer(plan, self._profile, self._read)
        self._trial = trial = _Trial()
        self._notes: list[str] = []
        sharers = 1
        if has_streams(plan.device):
            from protofl.federation.plan import store_choice

            sharers = store_choice.sharers(plan.settings)
        self._store = ClientStore(
            store_kind(plan.settings.client_store, plan.device, dry=plan.dry),
            plan.info,
            # Not of this host: in a cycle it would keep its clients' memory until it is collected.
            lambda client, model: build_client(plan, trial.number, client, model, secret),
            received=plan.composition.has_follow_up(plan.info),
            reuse=not plan.composition.has("setup_client"),
            device=plan.device,
            sharers=sharers,
        )

    def handle(self, job: work.Job) -> work.Reply:
        """Do a job.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        if isinstance(job, work.RoundJob):
            self._store.forget_others(job.round)
        limit, doing = self.plan.settings.job_limit, str(job)
        with self._computing(doing):
            with time_limit(limit, doing, go_on(job)):
                try:
                    reply = self._do(job)
                except RunFailure as error:
                    reply = self._absent(job, error)
        reply.notes += self._new_notes()
        if isinstance(job, work.ClientJob):
            reply.profile = self._profile.job_done()
        return reply

    # --- a host is a pool of one ----------------------------------------------------------------

    def run(self, jobs: Sequence[work.Job]) -> Iterator[tuple[work.Job, work.Reply]]:
        """Do clients' jobs, several at a time where the engine trains groups; yield as done.

        A profiled run does one at a time, as it tells of clients and of their steps, and so does
        the dry run, whose errors name a client.

        Raises:
            ProtoflError: What went wrong, with the client and the hook.
        """
        engine = self.plan.choices["engine"]
        train = [job for job in jobs if isinstance(job, work.Train)]
        grouped = engine.trains_groups and not (self._profile.on or self.one_by_one)
        names = [self.plan.info.architecture_of(job.client).name for job in train]
        groups: list[list[work.Job]] = [[job] for job in jobs]
        together = grouped and len(train) == len(jobs)
        if together:
            groups = [[train[place] for place in places] for places in chunks(engine, names)]
        if clients := _clients(jobs):
            self._store.expect(clients)
        self._store.fetch(_clients(groups[0]) if groups else [])
        while groups:
            group = groups.pop(0)
            self._store.fetch(_clients(groups[0]) if groups else [])
            if together:
                chosen = [job for job in group if isinstance(job, work.Train)]
                yield from zip(chosen, self._train_together(engine, chosen), strict=True)
            else:
                yield group[0], self.handle(group[0])

    def _train_together(self, engine: Choice, jobs: list[work.Train]) -> Sequence[work.Reply]:
        """Train several clients; if a hook fails and clients may be absent, one by one."""
        limit, doing = self.plan.settings.job_limit * len(jobs), " and ".join(map(str, jobs))
        for job in jobs:
            self._store.forget_others(job.round)
            self._store.forget_before(job.client)
        with self._computing(doing):
            with time_limit(limit, doing, go_on(jobs[0])):
                try:
                    trainings = [self._training(job) for job in jobs]
                    replies = train_clients(engine, trainings)
                except RunFailure as error:
                    if isinstance(error, Late) or not all(job.may_be_undone for job in jobs):
                        raise
                    replies = []
        if not replies:
            for job in jobs:
                self._store.undo(job.client)
            return [self.handle(job) for job in jobs]
        replies[0].notes += self._new_notes()
        return replies

    def _new_notes(self) -> list[str]:
        """Return lines for the user that have come up since the last call."""
        if (room := self.plan.resident.left_out) and not self.plan.dry:
            from protofl.federation.plan.store_choice import about_samples

            self._notes.insert(0, about_samples(*room))
        result, self._notes[:] = [*self._notes], []
        return result

    def _absent(self, job: work.Job, error: RunFailure) -> work.Absent:
        """Return the reply for a client whose hook failed; raise the error if it may not fail."""
        if not isinstance(job, work.RoundJob) or self.plan.dry or isinstance(error, Late):
            raise error
        if isinstance(error, BadUpload) and self.plan.settings.on_bad_upload == "skip":
            return work.Absent(reason="skipped", notes=[f"{error.what}: it is left out"])
        if not job.may_fail:
            raise error
        self._store.undo(job.client)
        notes = [f"{error.what}; the round goes on without the client"]
        return work.Absent(error=printable(error.what), notes=notes)

    def broadcast(self, job: work.Job) -> None:
        """Do a job."""
        self.handle(job)

    def close(self) -> None:
        """Do nothing: a host has no processes."""

    # --- for backends, and to look at -----------------------------------------------------------

    def warm_up(self) -> None:
        """Import what building the clients' models imports, while the run still prepares itself."""
        info = self.plan.info
        with suppress(Exception):  # the dry run words what is wrong with a model
            for architecture in info.architectures:
                info.unset_model(architecture)

    def client(self, number: int, *, keep: bool = False) -> ClientState:
        """Return the current state of a client; ``keep`` stores it as if it had trained."""
        if not keep:
            return self._store.state(number)
        with self._store.lent(number, trains=True) as state:
            return state

    def beside_models(self) -> int:
        """Return the bytes that a stored client keeps beside its model, the most of them."""
        beside = [0]
        for client in self._store.clients:
            state = self._store.state(client)
            model = [*state.model.parameters(), *state.model.buffers()]
            beside.append(self._store.size(client) - size_of(model))
        return max(beside)

    def _choose_store(self, chosen: str) -> None:
        """Choose how clients are kept with ``--client-store auto``, where it matters.

        Args:
            chosen: The run's choice for its hosts; empty for none.
        """
        plan = self.plan
        if plan.settings.client_store != "auto" or plan.dry or not has_streams(plan.device):
            return
        if not chosen:
            from protofl.federation.plan.store_choice import choose_store

            free = free_memory(plan.device) + plan.resident.size
            chosen, line = choose_store(plan.info, plan.settings, free, None)
            self._notes.append(line)
        self._store.keep_as(store_kind(chosen, plan.device, dry=False))

    @property
    def trained(self) -> set[int]:
        """The clients that have trained, which are all that a host stores."""
        return self._store.clients

    @contextmanager
    def _computing(self, doing: str) -> Iterator[None]:
        """Compute in the state of a run, with one thread: rounding depends on their number."""
        with standard_torch(), compute_threads(1), self.plan.computing(), disk_errors():
            try:
                yield
            except (MemoryError, RuntimeError) as error:
                if said := memory_problem(error):
                    raise RunFailure(f"{doing}: {said}", do=less_memory(error)) from error
                raise

    # --- operations -----------------------------------------------------------------------------

    def _do(self, job: work.Job) -> work.Reply:
        clock = Clock()
        match job:
            case work.Train():
                engine = self.plan.choices["engine"]
                return train_clients(engine, [self._training(job)])[0]
            case work.Evaluate():
                return self._evaluate(job, clock)
            case work.StartTrial():
                self._trial.number = job.trial
                self._choose_store(job.store)
                files = {client: Path(path) for client, path in job.files.items()}
                self._store.start(files, job.parked)
                self.plan.split(job.trial)  # computed while the hosts wait for each other
            case work.Save():
                if self.unwritten is None:
                    self._store.save(job.client, Path(job.path))
                elif packed := self._store.snapshot(job.client, Path(job.path)):
                    self.unwritten[job.path] = packed
                clock.lap("checkpoint")
            case work.Load():
                self._store.load(job.client, Path(job.path))
            case work.Drop():
                self._store.drop(job.client)
            case work.Undo():
                self._store.undo(job.client)
            case _:
                raise TypeError(f"a host cannot do {type(job).__name__}")
        return work.Reply(clock.seconds)

    def _training(self, job: work.Train) -> Training:
        """Train a client; the generator yields each `TrainJob` to the engine."""
        clock = Clock()
        with self._store.lent(job.client, trains=True, undo=job.may_be_undone) as state:
            clock.lap("setup")
            state.secret = self._secret_of(job)
            reply = yield from self._trainer.train(state, job, clock)
        if job.file:
            self._store.save(job.client, Path(job.file))
            self._store.undo(job.client)
        clock.lap("checkpoint")
        return reply

    def _secret_of(self, job: work.ClientJob) -> bytes:
        """Return a secret of this job alone; none in a simulation.

        Equal noise on two different uploads would cancel in their difference, and a server may send
        two downloads in one round. The same job, asked again, has the same noise.
        """
        if not self.secret:
            return b""
        from protofl.system.secret_stream import derived_key

        return derived_key(self.secret, type(job).__name__, sha256(job.blob).hexdigest())

    def _evaluate(self, job: work.Evaluate, clock: Clock) -> work.EvaluateReply:
        with evaluated(self, job, clock) as (state, download):
            counts, metric_counts = score(self.plan, state, download, job)
        clock.lap("evaluate")
        correct, count = counts["test"]
        return work.EvaluateReply(
            clock.seconds,
            correct=correct,
            count=count,
            train=counts.get("train"),
            validation=counts.get("validation"),
            balanced=counts.get("balanced"),
            blob=metric_counts.to_bytes(),
        )


@contextmanager
def evaluated(
    host: Host, job: work.Evaluate, clock: Clock
) -> Iterator[tuple[ClientState, Payload]]:
    """Lend a client with its download for an evaluation, fine-tuned if the job asks for it."""
    lent = host._store.lent(job.client, trains=False)
    with lent as state, state.unchanged() if job.epochs else nullcontext():
        clock.lap("setup")
        state.secret = host._secret_of(job)
        place = f"download, client {job.client}, evaluation of round {job.round + 1}"
        with error_context(place), state.same_download():
            state.round = job.round
            download = host._read(job.blob, Client(state, host.plan.composition.main))
        if job.epochs:
            tuning = host._trainer.fine_tune(state, download, job, clock)
            train_clients(host.plan.choices["engine"], [tuning])
        yield state, download

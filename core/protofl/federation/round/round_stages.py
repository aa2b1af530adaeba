"""Stages of a round: order of the jobs, and progress events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from protofl.data.batches import bounds_by_epoch
from protofl.data.tasks import CONTINUOUS
from protofl.federation import events
from protofl.federation.jobs.jobs import (
    Absent,
    ClientJob,
    Evaluate,
    Reply,
    RoundJob,
    Train,
    of_client,
)
from protofl.federation.jobs.pool_interface import NamedHosts, Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.round.known_sizes import KnownSizes
from protofl.federation.round.round_totals import STAGES, Totals
from protofl.hooks.transport.rules import (
    Fault,
    PointValues,
    ReplyValues,
    check_reply,
    printable,
    refused_reply,
    skipped_upload,
)
from protofl.system.clocks import NoProfile


class Workload:
    """Counts the mini-batches of clients' jobs from the plan.

    A phase that trains on rows that the server chooses is taken to train on all public samples, and
    a phase that needs something of the download to take place.

    Args:
        plan: The run.
        trial: The trial.
    """

    def __init__(self, plan: Plan, trial: int) -> None:
        self._plan, self._split = plan, plan.split(trial)
        phases = plan.composition.phases(plan.info)
        self._phases = [phase for phase in phases if plan.composition.terms_of(phase)]
        public = self._split.public if plan.public_data is None else plan.public_data.y
        self._public = 0 if public is None else len(public)

        @cache
        def batches(samples: int, epochs: float) -> int:
            size, drop_last = plan.settings.batch_size, plan.settings.drop_last
            return sum(map(len, bounds_by_epoch(samples, size, drop_last, epochs)))

        self._batches = batches

    def training(self, client: int) -> int:
        """Return the mini-batches on which a client trains in a round."""
        train_size, epochs = int(self._split.train_sizes[client]), self._plan.settings.local_epochs
        return sum(
            self._batches(
                train_size if phase.data == "private" else self._public, phase.epochs or epochs
            )
            for phase in self._phases
        )


R = TypeVar("R", bound=Reply)


class Stages:
    """Orders the jobs of a run, and follows them.

    Args:
        plan: The run.
        pool: The hosts.
        progress: Receives every stage, client and note.
        profile: Takes where the time goes.

    Attributes:
        profile: As given.
        trial: The trial.
        sizes: Checks the clients' numbers of samples.
    """

    sizes: KnownSizes

    def __init__(
        self, plan: Plan, pool: Pool, progress: events.Progress, profile: NoProfile
    ) -> None:
        self._plan, self._progress, self.profile = plan, progress, profile
        self._pool = pool
        self._labels = {term.label for term in plan.composition.terms}
        self._form = PointValues if plan.data.task.name in CONTINUOUS else ReplyValues
        self._noted: set[str] = set()
        self._told = ""
        self.trial = 0
        pool.report = lambda line: progress(events.Note(line))

    def begin(self, stage: str, clients: Sequence[int] = ()) -> None:
        """Report the start of a stage, with the clients that are to do it."""
        self._told = stage
        self._progress(events.StageStarted(stage, len(clients)))

    def replies(
        self, stage: str, work: Sequence[ClientJob], kind: type[R], totals: Totals
    ) -> dict[int, R]:
        """Run jobs of one kind on the hosts; return {client: reply} without lost clients."""
        with self._ordered(stage, work) as ordered:
            replies = {
                (client_job := of_client(job)).client: self.take(
                    stage, client_job, reply, kind, totals
                )
                for job, reply in self._pool.run(ordered)
            }
        return {client: reply for client, reply in replies.items() if reply is not None}

    @contextmanager
    def _ordered(self, stage: str, jobs: Sequence[ClientJob]) -> Iterator[list[ClientJob]]:
        """Yield the jobs of a stage in the order in which they start; call `take` for each."""
        plan = self._plan
        sizes: list[int] = plan.split(self.trial).train_sizes.tolist()

        def cost(job: ClientJob) -> float:
            return -sizes[job.client] * plan.cost(plan.info.architecture_of(job.client))

        in_order = sorted(jobs, key=cost)  # costly first; results do not depend on the order
        with self.profile.span("waiting for workers", "server"):
            yield in_order

    def take(
        self, stage: str, job: ClientJob, reply: Reply, kind: type[R], totals: Totals
    ) -> R | None:
        """Check and book a reply; None if its client is lost, which the totals note."""
        result = self._sound(job, reply, kind)
        self._done(stage, job.client, result, totals)
        if not isinstance(result, Absent):
            return result
        totals.leave_out(job.client, result.reason, result.error, stage)
        return None

    def _sound(self, job: ClientJob, reply: Reply, kind: type[R]) -> R | Absent:
        """Check a reply: a bad one stops the run, or makes its client absent."""
        skip = self._plan.settings.on_bad_upload == "skip"
        skip = skip and isinstance(job, Train) and job.when == "before_upload"
        gone = isinstance(reply, Absent) and (
            getattr(job, "may_fail", False) or (skip and reply.reason == "skipped")
        )
        expected: type[Reply] = Absent if gone else kind
        try:
            check_reply(reply.header(), expected.__name__, STAGES, self._labels, self._form)
            self.sizes.check(job, reply)
        except Fault as fault:
            if skip and isinstance(job, Train):
                note = skipped_upload(job.client, job.round, fault)
                return Absent(reason="skipped", notes=[note])
            return self._gone(job, fault)
        assert isinstance(reply, (Absent, kind))
        return reply

    def leave_unscored(self, job: Evaluate, fault: Fault, totals: Totals) -> None:
        """Leave a client whose counts have a fault out of the scores.

        Raises:
            RunFailure: The run does not go on without clients.
        """
        gone = self._gone(job, fault)
        for note in gone.notes:
            self.note(printable(note))
        totals.leave_out(job.client, gone.reason, stage="evaluate")

    def _gone(self, job: ClientJob, fault: Fault) -> Absent:
        """Return the reply of a client whose own reply has a fault.

        Raises:
            RunFailure: The run does not go on without the client.
        """
        host = self._pool.host_of(job.client) if isinstance(self._pool, NamedHosts) else "its host"
        if not (isinstance(job, RoundJob) and job.may_fail):
            raise refused_reply(str(job), fault, host)
        note = f"{job}: {host} answered with {fault.problem}; the round goes on without the client"
        return Absent(reason="failed", notes=[note])

    def _done(self, stage: str, client: int, reply: Reply, totals: Totals) -> None:
        """Book the time of a client's job, and report it."""
        if reply.profile:
            self.profile.take(reply.profile, reply.seconds)
        totals.spend(reply.seconds)
        for note in getattr(reply, "notes", ()):
            self.note(printable(note))
        if stage == self._told:
            self._progress(events.ClientDone(stage, client))

    def note(self, line: str) -> None:
        """Report a line, once."""
        if line not in self._noted:
            self._noted.add(line)
            self._progress(events.Note(line))

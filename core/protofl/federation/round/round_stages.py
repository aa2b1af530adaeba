"""Stages of a round: order of the jobs, expected mini-batches, and progress events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from protofl.data.batches import batch_bounds
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
from protofl.system.profile import RunProfile
from protofl.system.progress import Stage


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
        balanced = plan.balanced_samples(trial, channels_last=False)
        self._balanced = 0 if balanced is None else len(balanced)

        @cache
        def batches(samples: int) -> int:
            bounds = batch_bounds(samples, plan.settings.batch_size, plan.settings.drop_last)
            return len(bounds)

        self._batches = batches

    def training(self, client: int, *when: str) -> int:
        """Return the mini-batches on which a client trains in a round, or in one stage of it.

        Args:
            client: The client.
            *when: ``before_upload``, ``after_server``, or both if none is given.
        """
        train_size, epochs = int(self._split.train_sizes[client]), self._plan.settings.local_epochs
        return sum(
            (phase.epochs or epochs)
            * self._batches(train_size if phase.data == "private" else self._public)
            for phase in self._phases
            if not when or phase.when in when
        )

    def scoring(self, client: int, epochs: int = 0) -> int:
        """Return the mini-batches of a client's evaluation.

        Args:
            client: The client.
            epochs: Epochs for which it is fine-tuned before.
        """
        size = self._plan.info.architecture_of(client).eval_batch
        train_size, held = int(self._split.train_sizes[client]), self._split.held_out(client)
        scored = [len(self._split.test(client)), 0 if held is None else len(held)]
        if "train-accuracy" in self._plan.settings.measure:
            scored.append(train_size)
        if "global-accuracy" in self._plan.settings.measure:
            scored.append(self._balanced)  # the same for all
        tuned = [p for p in self._phases if (p.when, p.data) == ("before_upload", "private")]
        steps = epochs * len(tuned) * self._batches(train_size)
        return steps + sum(-(-count // size) for count in scored)


R = TypeVar("R", bound=Reply)


class Stages:
    """Orders the jobs of a run, and follows them.

    Args:
        plan: The run.
        pool: The hosts.
        progress: Receives every stage, client and note.
        profile: Takes where the time goes.

    Attributes:
        trial: The trial.
        sizes: Checks the clients' numbers of samples.
    """

    sizes: KnownSizes

    def __init__(
        self, plan: Plan, pool: Pool, progress: events.Progress, profile: RunProfile
    ) -> None:
        self._plan, self._progress, self._profile = plan, progress, profile
        self._pool = pool
        self._labels = {term.label for term in plan.composition.terms}
        self._form = PointValues if plan.data.task.name in CONTINUOUS else ReplyValues
        self._noted: set[str] = set()
        self._told = ""
        self._counts = Stage({}, {})
        self._followed = events.follows_steps(progress)
        self.trial = 0
        pool.report = lambda line: progress(events.Note(line))
        if self._followed and hasattr(pool, "on_steps"):
            pool.on_steps = self._steps

    def begin(
        self, stage: str, clients: Sequence[int] = (), when: str = "", epochs: int = 0
    ) -> None:
        """Report the start of a stage.

        Args:
            stage: The stage.
            clients: The clients that are to do it.
            when: Which phases of the method, where they train.
            epochs: Epochs for which they are fine-tuned, where they are scored.
        """
        self._told, plan, steps = stage, self._plan, dict[int, int]()
        if self._followed and stage in ("train", "evaluate"):
            workload = Workload(plan, self.trial)
            steps = {
                c: workload.training(c, when) if when else workload.scoring(c, epochs)
                for c in clients
            }
        info = plan.info
        self._counts = Stage(steps, {c: plan.cost(info.architecture_of(c)) for c in steps})
        self._progress(events.StageStarted(stage, len(clients), self._counts.steps))

    def _steps(self, client: int, finished: int | None = None) -> None:
        """Report finished mini-batches of a client; None for all of them."""
        if self._counts.take(client, finished):
            counts = self._counts
            told = events.StepsDone(self._told, counts.done, counts.steps, counts.share)
            self._progress(told)

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
        plan, sizes = self._plan, self._plan.split(self.trial).train_sizes

        def cost(job: ClientJob) -> float:
            return -int(sizes[job.client]) * plan.cost(plan.info.architecture_of(job.client))

        in_order = sorted(jobs, key=cost)  # costly first; results do not depend on the order
        with self._profile.stage():
            for job in in_order:
                job.counted = self._followed
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
            self._profile.take(reply.profile, reply.seconds)
        totals.spend(reply.seconds)
        for note in getattr(reply, "notes", ()):
            self.note(printable(note))
        if stage == self._told:
            self._steps(client)
            self._progress(events.ClientDone(stage, client))

    def note(self, line: str) -> None:
        """Report a line, once."""
        if line not in self._noted:
            self._noted.add(line)
            self._progress(events.Note(line))

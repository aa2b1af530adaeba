"""Stages of a round: jobs that hosts do, costly ones first, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from protofl.hosts.jobs import ClientJob, Pool, Reply
from protofl.plan.plan import Plan
from protofl.profile.timeline import Timeline
from protofl.runs import events
from protofl.runs.tally import Tally

R = TypeVar("R", bound=Reply)


class Stages:
    """Has the hosts of a run do jobs.

    Args:
        plan: The run.
        pool: The hosts.
        progress: Told of every stage, client and note.
        timeline: Takes where the time goes, where the run is profiled.
    """

    def __init__(
        self, plan: Plan, pool: Pool, progress: events.Progress, timeline: Timeline | None
    ) -> None:
        self._plan, self._pool, self._timeline = plan, pool, timeline
        self._progress = progress
        self._noted: set[str] = set()
        self._sizes: list[int] = []
        pool.report = lambda line: progress(events.Note(line))

    def start_trial(self, trial: int) -> None:
        """Take in how many samples each client has in a trial."""
        self._sizes = self._plan.split(trial).offsets.diff()[::2].tolist()

    def begin(self, stage: str, jobs: int) -> None:
        """Tell of a stage with so many jobs."""
        self._progress(events.StageStarted(stage, jobs))

    def replies(
        self, stage: str, jobs: Sequence[ClientJob], kind: type[R], tally: Tally
    ) -> dict[int, R]:
        """{client: reply} to jobs, all of one kind; their seconds are booked."""
        replies: dict[int, R] = {}
        for job, reply in self.deal(stage, jobs):
            assert isinstance(reply, kind), f"{job} was answered by {type(reply).__name__}"
            replies[job.client] = reply
            tally.spend(reply.seconds)
            for note in getattr(reply, "notes", ()):
                if note not in self._noted:
                    self._noted.add(note)
                    self._progress(events.Note(note))
            self._progress(events.ClientDone(stage, job.client))
        return replies

    def deal(self, stage: str, jobs: Sequence[ClientJob]) -> Iterator[tuple[ClientJob, Reply]]:
        """Each job with its reply as it is done."""
        jobs = self._costly_first(jobs)
        if self._timeline is None:
            yield from self._done(jobs)
            return
        with self._timeline.stage(stage, [job.client for job in jobs]) as sampled:
            for job in jobs:
                job.sample = job.client in sampled
            for job, reply in self._done(jobs):
                if reply.profile:
                    self._timeline.take(job.client, reply.profile, reply.seconds)
                yield job, reply

    def _done(self, jobs: list[ClientJob]) -> Iterator[tuple[ClientJob, Reply]]:
        for job, reply in self._pool.run(jobs):
            assert isinstance(job, ClientJob)
            yield job, reply

    def _costly_first(self, jobs: Sequence[ClientJob]) -> list[ClientJob]:
        """The order in which jobs are dealt; it has no influence on results."""
        plan = self._plan

        def cost(job: ClientJob) -> float:
            return -self._sizes[job.client] * plan.cost(plan.info.architecture_of(job.client))

        return sorted(jobs, key=cost)

"""Hosts in other processes that may end: each job is repeated until a host has done it.

The jobs of a client since its last file are remembered. If the host of a client ends, another host
restores the client from that file or its seed by the same jobs, to the same bits.

A host interrupts a job that takes too long. A host that cannot do so is ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from protofl.errors import HostFailure, Late
from protofl.federation.clients.host import go_on
from protofl.federation.jobs.jobs import (
    Absent,
    ClientJob,
    Drop,
    Job,
    Load,
    Reply,
    RoundJob,
    Save,
    StartTrial,
    Train,
    Undo,
)
from protofl.federation.jobs.recovery import Deadlines, Handle, Memory, Slot
from protofl.system.files.atomic import ScratchFolder

TRIES = 3
"""Hosts that may end in the same job before the run does."""


GRACE = 60.0
"""Seconds that a host has beyond a job's limit to interrupt the job itself."""


class NoHost(Exception):
    """A host ended and could not be replaced."""


class Workers:
    """The hosts, their clients, and the replacement of hosts that end.

    Args:
        start: Starts host number n; see `protofl.backends.Dispatcher`.
        count: Hosts to start.
        journal: Bytes of different downloads to remember, at most.
        job_limit: Seconds that a client's job may take; 0 for any.

    Attributes:
        lock: Held wherever several threads could change something; notified when a client's host
            has changed.
        slots: The hosts, by their numbers.
        assigned: {client: the host that it goes to in this round} of those that live on none yet.
        notes: Lines for the user.
    """

    def __init__(
        self, start: Callable[[int], Handle], count: int, journal: int, job_limit: float = 0
    ) -> None:
        self.lock = threading.Condition()
        self.slots: list[Slot] = []
        self.assigned: dict[int, int] = {}
        self.notes: SimpleQueue[str] = SimpleQueue()
        self._start, self._memory, self._limit = start, Memory(journal), job_limit
        self._watch = Deadlines(job_limit + GRACE)
        self._handover = ScratchFolder("protofl-moved-")
        self._trial: StartTrial | None = None
        self._closed = False
        try:
            for number in range(count):
                self.slots.append(self._slot(number))
        except BaseException:
            self.close()
            raise

    def _slot(self, number: int) -> Slot:
        """Start a host."""
        return Slot(number, self._start(number))

    @property
    def working(self) -> list[int]:
        """Numbers of the hosts that have not ended for good."""
        return [slot.number for slot in self.slots if not slot.ended]

    def home(self, client: int) -> int | None:
        """Return the host of a client; None if the client must be built first."""
        kept = self._memory.clients.get(client)
        slot = kept.here if kept else None
        return slot.number if slot else None

    def begin(self, trial: StartTrial) -> None:
        """Start a trial; each host gets it before its next job."""
        self._memory.forget(trial.files)
        self._trial, self.assigned = trial, {}
        self._handover.clear()
        self._handover = ScratchFolder("protofl-moved-", trial.parked)
        for slot in self.slots:
            slot.told = False

    def close(self) -> None:
        """End all hosts."""
        with self.lock:
            self._closed = True
            slots = list(self.slots)
        self._watch.close()
        for slot in slots:
            slot.host.close()
        self._handover.clear()

    def attempt(self, number: int, job: Job | None) -> Reply:
        """Run a job; None only tells a host about the trial.

        Returns:
            The reply; `Absent` where the job ended three hosts or did not end, and may fail.

        Raises:
            HostFailure: It ended three hosts, or the host that ended had a client that can't be
                restored, or was the last.
            Late: It did not end.
            NoHost: The host ended and none can be started in its place; others have its work.
        """
        ended = 0
        while True:
            slot, may_fail = self.slots[number], isinstance(job, RoundJob) and job.may_fail
            try:
                self._tell(slot)
                if job is None:
                    return Reply()
                if isinstance(job, ClientJob):
                    self._bring(slot, job)
                reply = self._within_limit(slot, job)
            except Late as late:
                if not may_fail:
                    raise
                # What it was interrupted in may have left the host in any state.
                failure = HostFailure(f"worker {number}: {late.what}")
                return self._without(slot, failure, job, "it did not end")
            except HostFailure as failure:
                ended += 1
                row = f"{TRIES} hosts in a row ended in this job"
                if ended < TRIES:
                    self._replace(slot, failure)
                    continue
                if not may_fail:
                    raise HostFailure(failure.what, row, failure.do) from failure
                return self._without(slot, failure, job, row)
            with self.lock:
                if isinstance(job, Train) and getattr(reply, "reason", "") != "failed":
                    if not job.file:  # otherwise the client is what it was
                        self._memory.trained(job)
                elif isinstance(job, Undo):
                    self._memory.undone(job.client)
                elif isinstance(job, Save):
                    self._memory.saved(job.client, job.path)
                elif isinstance(job, Load):
                    self._memory.loaded(job.client, job.path, slot)
            return reply

    def _within_limit(self, slot: Slot, job: Job) -> Reply:
        """Run a job on a host; a host that cannot interrupt a late job is ended."""
        if not self._limit or not isinstance(job, ClientJob):
            return slot.host.do(job)
        with self._watch.over(slot.host) as watched:
            try:
                return slot.host.do(job)
            except HostFailure as failure:
                if not watched.rung:
                    raise
                limit = f"{self._limit:g} s (--job-limit)"
                why = f"no end after {limit}, and it could not be interrupted"
                raise Late(f"{failure.what}: {why}", do=go_on(job)) from failure

    def _without(self, slot: Slot, failure: HostFailure, job: Job | None, why: str) -> Absent:
        """Replace a host, and mark the client of its job as absent."""
        with suppress(NoHost):  # others do its work
            self._replace(slot, failure)
        return Absent(notes=[f"{job}: {why}; the round goes on without the client"])

    def release(self, number: int, clients: list[int]) -> None:
        """Release clients from a host, so that other hosts can take them."""
        slot = self.slots[number]
        try:
            for client in clients:
                kept = self._memory.of(client)
                if kept.jobs or kept.gap:
                    path = self._handover.file(f"client-{client:05d}.safetensors")
                    slot.host.do(Save(client, str(path)))
                    kept.handover = path
                slot.left.add(client)
                kept.slot = None
                slot.host.do(Drop(client))
        except HostFailure as failure:
            # Its other clients are restored when they are needed.
            with suppress(NoHost):
                self._replace(slot, failure)

    def _tell(self, slot: Slot) -> None:
        """Tell a host about the trial, with the current files of clients."""
        if slot.told or self._trial is None:
            return
        with self.lock:
            files = dict(self._memory.files)
        slot.host.do(replace(self._trial, files=files))
        slot.told, slot.files, slot.left = True, files, set()

    def _bring(self, slot: Slot, job: ClientJob) -> None:
        """Restore a job's client on a host if it is not there."""
        client = job.client
        with self.lock:
            if not isinstance(job, Train) and not self._memory.moved(client):
                return  # it is its seed, anywhere and afterwards too
            kept = self._memory.of(client)
        if kept.slot is slot:
            return
        if kept.handover is not None:
            slot.host.do(Load(client, str(kept.handover)))
        else:
            known = slot.files.get(client) == kept.base and client not in slot.left
            if kept.base is not None and not known:
                slot.host.do(Load(client, kept.base))
            for past in kept.jobs:
                slot.host.do(past)
        slot.left.discard(client)
        kept.slot = slot

    def _replace(self, slot: Slot, failure: HostFailure) -> None:
        """Replace a host that ended; raises as `attempt` does."""
        with self.lock:
            if self._closed:
                raise failure
            slot.ended = True
            self.assigned = {c: n for c, n in self.assigned.items() if n != slot.number}
            lost = [kept for kept in self._memory.clients.values() if kept.slot is slot]
        slot.host.close()
        if any(kept.gap and kept.handover is None for kept in lost):
            raise HostFailure(
                failure.what,
                "the jobs of its clients are too large to repeat",
                "use checkpoints, from which clients are restored (--checkpoint-every 1); "
                + failure.do,
            ) from failure
        count = f"{len(lost)} client{'s' if len(lost) != 1 else ''}"
        try:
            fresh = self._slot(slot.number)
        except HostFailure as refused:
            if all(other.ended for other in self.slots):
                raise refused from failure
            self.notes.put(f"{failure.what}; not replaced ({refused.what}), {count} to restore")
            raise NoHost from refused
        with self.lock:
            if not self._closed:
                self.slots[slot.number] = fresh
                self.notes.put(f"{failure.what}; replaced, {count} to restore")
                self.lock.notify_all()
                return
        fresh.host.close()
        raise failure

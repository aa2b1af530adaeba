"""Memory of clients for hosts that end, and deadlines of jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from protofl.federation.jobs.jobs import Job, Reply, Train

JOURNAL = 256 << 20
"""Bytes of different downloads that are kept for repeating, at most."""


class Handle(Protocol):
    """Handle of a host in a backend; see `protofl.backends.Dispatcher`."""

    def do(self, job: Job) -> Reply:
        """Run a job; raises `HostFailure` if the host ended."""
        ...

    def close(self) -> None:
        """End the host."""
        ...


@dataclass(eq=False)
class Slot:
    """A host, from its start to its end.

    Attributes:
        number: Its place among the hosts; the one that replaces it has the same.
        host: The backend's handle.
        told: Whether it knows the trial.
        files: The clients' files that came with the trial.
        left: Clients that were on it since and have been moved away.
        ended: Whether it is no more.
    """

    number: int
    host: Handle
    told: bool = False
    files: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    ended: bool = False


@dataclass(eq=False)
class ClientHistory:
    """The history of a client that has trained: how to restore it.

    Attributes:
        base: The file in which it lay at the last checkpoint; None for its seed.
        jobs: What it has been trained with since.
        gap: Whether some of it has been forgotten, for want of room.
        slot: Where it was last.
        handover: A file with all of it, on its way to another host.
    """

    base: str | None
    jobs: list[Train] = field(default_factory=list)
    gap: bool = False
    slot: Slot | None = None
    handover: Path | None = None

    @property
    def here(self) -> Slot | None:
        """The host of the client; None if the client must be built first."""
        return None if self.slot is None or self.slot.ended else self.slot


class Memory:
    """The clients of a trial, and their jobs since their last files."""

    def __init__(self, limit: int = JOURNAL) -> None:
        self._limit = limit
        self.forget({})

    def forget(self, files: dict[int, str]) -> None:
        """Start a trial, in which some clients have files."""
        self.files = dict(files)
        self.clients: dict[int, ClientHistory] = {}
        self._uses: Counter[int] = Counter()
        self._bytes = 0

    def of(self, client: int) -> ClientHistory:
        """Return the history of a client."""
        if client not in self.clients:
            self.clients[client] = ClientHistory(self.files.get(client))
        return self.clients[client]

    def moved(self, client: int) -> bool:
        """Return True if a client differs from its initial state."""
        kept = self.clients.get(client)
        return client in self.files or (kept is not None and bool(kept.jobs or kept.gap))

    def trained(self, job: Train) -> None:
        """Note a job that changed a client."""
        kept = self.of(job.client)
        kept.jobs.append(job)
        if kept.handover is not None:  # the file of a move, of no use any more
            kept.handover.unlink(missing_ok=True)
            kept.handover = None
        # Clients that got the same bytes share them here too.
        if not self._uses[id(job.blob)]:
            self._bytes += len(job.blob)
        self._uses[id(job.blob)] += 1
        if kept.gap or self._bytes > self._limit:
            kept.gap = True
            self._release(kept.jobs)

    def undone(self, client: int) -> None:
        """Forget a client's last training, which was undone."""
        kept = self.of(client)
        if kept.jobs:
            self._release(kept.jobs, 1)

    def saved(self, client: int, path: str) -> None:
        """Note a file with the current state of a client."""
        kept = self.of(client)
        kept.base, kept.gap = path, False
        self.files[client] = path
        self._release(kept.jobs)

    def loaded(self, client: int, path: str, slot: Slot) -> None:
        """Note a file whose content a client has taken on its host."""
        self.saved(client, path)
        kept = self.of(client)
        kept.slot, kept.handover = slot, None
        slot.left.discard(client)

    def _release(self, jobs: list[Train], count: int | None = None) -> None:
        """Forget the last jobs, or all of them."""
        for _ in range(len(jobs) if count is None else count):
            job = jobs.pop()
            self._uses[id(job.blob)] -= 1
            if not self._uses[id(job.blob)]:
                del self._uses[id(job.blob)]
                self._bytes -= len(job.blob)


NAME = "protofl deadlines"
"""Name of the thread."""


@dataclass(eq=False)
class Deadline:
    """A job on a host.

    Attributes:
        host: The host, which is ended when the job is late.
        end: When that is, by the monotonic clock.
        rung: Whether it has been ended for that.
    """

    host: Handle
    end: float
    rung: bool = False


class Deadlines:
    """Ends hosts whose jobs exceed the time limit.

    One thread watches all jobs and starts with the first: a thread for each job would cost more
    than the job.

    Args:
        seconds: How long a job may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._jobs = seconds, set[Deadline]()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, host: Handle) -> Iterator[Deadline]:
        """Limit the time of the job in the block."""
        job = Deadline(host, time.monotonic() + self._seconds)
        with self._lock:
            self._jobs.add(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name=NAME, daemon=True)
                self._thread.start()
        try:
            yield job
        finally:
            with self._lock:
                self._jobs.discard(job)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _look(self) -> None:
        pause = self._seconds
        while not self._closed.wait(pause):
            now = time.monotonic()
            with self._lock:
                late = [job for job in self._jobs if job.end <= now and not job.rung]
                ahead = [job.end for job in self._jobs if job.end > now]
                for job in late:
                    job.rung = True
            for job in late:
                job.host.close()
            # A job that begins meanwhile ends later than any of these, or than a whole limit.
            pause = min(ahead, default=now + self._seconds) - now

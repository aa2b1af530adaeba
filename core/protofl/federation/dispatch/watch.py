"""Jobs that never end: one thread looks after the deadlines of all hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protofl.federation.dispatch.recovery import Handle

NAME = "protofl deadlines"
"""Of the thread."""


@dataclass(eq=False)
class Watched:
    """A job on a host.

    Attributes:
        host: The host, which is ended when the job is late.
        end: When that is, by the monotonic clock.
        rung: Whether it has been ended for that.
    """

    host: Handle
    end: float
    rung: bool = False


class Watch:
    """Ends hosts whose job takes too long.

    Its thread starts with the first job: one for each job would cost more than what else there is
    to a job.

    Args:
        seconds: How long a job may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._jobs = seconds, set[Watched]()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, host: Handle) -> Iterator[Watched]:
        """While a host does a job."""
        job = Watched(host, time.monotonic() + self._seconds)
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
        """Look no longer."""
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

"""Dealing jobs to hosts that work at the same time, a thread for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Queue, SimpleQueue
from typing import Any, NamedTuple

from protofl.federation.dispatch.crew import Crew, NoHost
from protofl.federation.hosts.jobs import ClientJob, Reply, Train
from protofl.system.progress import OnSteps


class _Steps(NamedTuple):
    """How many mini-batches of a client's job are done."""

    client: int
    done: int


class Deal:
    """Jobs, which hosts take as they become free; those of a client by its own host alone.

    Args:
        crew: The hosts.
        jobs: The jobs.
        on_steps: Takes a client and how many mini-batches of its job are done, in the thread that
            reads the replies; None for nobody.
    """

    def __init__(
        self, crew: Crew, jobs: Iterable[ClientJob], on_steps: OnSteps | None = None
    ) -> None:
        self._crew, self._left, self._on_steps = crew, list(jobs), on_steps
        self._busy: set[int] = set()
        self._done: Queue[tuple[ClientJob, Reply] | _Steps | BaseException | None] = Queue()
        crew.on_steps = lambda client, done: self._done.put(_Steps(client, done))

    def replies(self) -> Iterator[tuple[ClientJob, Reply] | None]:
        """Each job with its reply as it is done; None where a host found nothing more to do.

        Raises:
            HostFailure: A job ended three hosts, or a client could not be restored.
            Late: A job did not end.
        """
        working = self._crew.working
        for number in working:
            threading.Thread(target=self._serve, args=(number,), daemon=True).start()
        idle = 0
        try:
            while idle < len(working):
                item = self._done.get()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, _Steps):
                    if self._on_steps is not None:
                        self._on_steps(*item)
                    continue
                idle += item is None
                yield item
        finally:
            with self._crew.lock:
                self._left.clear()
                self._crew.lock.notify_all()

    def _serve(self, number: int) -> None:
        """What a host's thread does."""
        try:
            while (job := self._take(number)) is not None:
                try:
                    self._done.put((job, self._crew.attempt(number, job)))
                except NoHost:
                    with self._crew.lock:
                        self._left.insert(0, job)
                    break
                finally:
                    with self._crew.lock:
                        self._busy.discard(number)
                        self._crew.lock.notify_all()
        except BaseException as error:
            self._done.put(error)
        self._done.put(None)

    def _take(self, number: int) -> ClientJob | None:
        """The next job for a host; None where there will be none, or it has ended."""
        crew = self._crew
        with crew.lock:
            while (self._left or self._busy) and number in crew.working:
                for position, job in enumerate(self._left):
                    home = crew.home(job.client)
                    owner = crew.assigned.get(job.client) if home is None else home
                    if owner in (number, None):
                        self._busy.add(number)
                        if isinstance(job, Train):
                            crew.assigned[job.client] = number
                        return self._left.pop(position)
                # A host may yet end, and its clients go to whoever is free.
                crew.lock.wait()
        return None


def at_once(work: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> None:
    """Call something with several sets of arguments at the same time.

    Raises:
        BaseException: The first error of a call.
    """
    done: SimpleQueue[BaseException | None] = SimpleQueue()

    def call(*given: Any) -> None:  # noqa: ANN401 - as the work takes it
        try:
            work(*given)
            done.put(None)
        except BaseException as error:
            done.put(error)

    threads = [threading.Thread(target=call, args=given, daemon=True) for given in each]
    for thread in threads:
        thread.start()
    for _ in threads:
        error = done.get()
        if error is not None:
            raise error

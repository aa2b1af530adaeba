"""The dispatcher: a pool of hosts in other processes, for any backend.

A backend starts hosts and sends jobs to them. `placement` assigns clients to hosts, `JobQueue`
gives out jobs, and `host_pool` and `recovery` restore the clients of hosts that ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Queue, SimpleQueue
from typing import Any

from protofl.errors import HostFailure
from protofl.federation.jobs.jobs import Absent, ClientJob, Job, Reply, StartTrial, Train
from protofl.federation.jobs.placement import Seconds, place
from protofl.federation.jobs.recovery import JOURNAL, Handle
from protofl.federation.pools.host_pool import NoHost, Workers
from protofl.system.machine import usable_cores

_Done = tuple[ClientJob, Reply] | BaseException | None
"""A finished job, an error, or None for a host without further jobs."""


class JobQueue:
    """Jobs that hosts take as they become free; a client's jobs go to its own host.

    Args:
        hosts: The hosts.
        jobs: The jobs.
    """

    def __init__(self, hosts: Workers, jobs: Iterable[ClientJob]) -> None:
        self._hosts, self._left = hosts, list(jobs)
        self._busy: set[int] = set()
        self._done: Queue[_Done] = Queue()

    def replies(self) -> Iterator[tuple[ClientJob, Reply] | None]:
        """Yield each job with its reply when it is done; None when a host has nothing more to do.

        Raises:
            HostFailure: A job crashed three hosts, or a client could not be restored.
            Late: A job did not end.
        """
        working = self._hosts.working
        for number in working:
            threading.Thread(target=self._serve, args=(number,), daemon=True).start()
        idle = 0
        try:
            while idle < len(working):
                item = self._done.get()
                if isinstance(item, BaseException):
                    raise item
                idle += item is None
                yield item
        finally:
            with self._hosts.lock:
                self._left.clear()
                self._hosts.lock.notify_all()

    def _serve(self, number: int) -> None:
        """Give jobs to a host until none is left; runs in the thread of that host."""
        try:
            while (job := self._take(number)) is not None:
                try:
                    self._done.put((job, self._hosts.attempt(number, job)))
                except NoHost:
                    with self._hosts.lock:
                        self._left.insert(0, job)
                    break
                finally:
                    with self._hosts.lock:
                        self._busy.discard(number)
                        self._hosts.lock.notify_all()
        except BaseException as error:
            self._done.put(error)
        self._done.put(None)

    def _take(self, number: int) -> ClientJob | None:
        """Return the next job for a host; None if there is none or the host has ended."""
        hosts = self._hosts
        with hosts.lock:
            while (self._left or self._busy) and number in hosts.working:
                for position, job in enumerate(self._left):
                    home = hosts.home(job.client)
                    owner = hosts.assigned.get(job.client) if home is None else home
                    if owner in (number, None):
                        self._busy.add(number)
                        if isinstance(job, Train):
                            hosts.assigned[job.client] = number
                        return self._left.pop(position)
                # A host may yet end, and its clients go to whoever is free.
                hosts.lock.wait()
        return None


def call_in_threads(work: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> None:
    """Call a function with several sets of arguments at the same time.

    Raises:
        BaseException: The first error of a call.
    """
    outcomes: SimpleQueue[BaseException | None] = SimpleQueue()

    def call(*arguments: Any) -> None:  # noqa: ANN401 - as the work takes it
        try:
            work(*arguments)
            outcomes.put(None)
        except BaseException as error:
            outcomes.put(error)

    threads = [threading.Thread(target=call, args=arguments, daemon=True) for arguments in each]
    for thread in threads:
        thread.start()
    for _ in threads:
        error = outcomes.get()
        if error is not None:
            raise error


class Dispatcher:
    """A pool of hosts that work at the same time.

    A client stays with the host it first trained on. Before a round it is moved where by measured
    seconds the round would otherwise take over a tenth longer. A host that ends is replaced and
    its clients are restored when they are next needed. Results depend on none of it.

    Args:
        start: Starts host number n and returns a handle with two methods: ``do(job)``, which
            returns the `Reply` or raises `HostFailure` where the host ended, and ``close()``,
            which ends the host and may be called twice and from any thread. Where no host can be
            started any more ``start`` raises `HostFailure`; the others then do its work. A handle
            may have a method ``ready()``, which waits until the host has started.
        count: Hosts to start.
        journal: Bytes of different downloads to remember, at most.
        job_limit: Seconds after which a client's job counts as one that never ends; 0 for any. A
            host interrupts such a job; one that can't is ended, by ``close()``.

    Attributes:
        report: Takes a line for the user, in the thread that runs the jobs.
    """

    cores = staticmethod(usable_cores)
    """The numbers of the cores on which this process, and hosts that it starts, may run."""

    def __init__(
        self,
        start: Callable[[int], Handle],
        count: int,
        *,
        journal: int = JOURNAL,
        job_limit: float = 0,
    ) -> None:
        self.report: Callable[[str], None] = lambda line: None
        self._hosts = Workers(start, count, journal, job_limit)
        self._seconds = Seconds()
        self._placed: int | None = None

    def ready(self) -> None:
        """Wait until all hosts have started, as far as their handles have a method ``ready``.

        Raises:
            UsageError: A host can't compute on its device.
        """

        def wait(host: Any) -> None:  # noqa: ANN401 - a `Handle` with one more method
            with suppress(HostFailure):  # it is replaced when it gets its first job
                host.ready()

        hosts = [slot.host for slot in self._hosts.slots]
        call_in_threads(wait, [(host,) for host in hosts if hasattr(host, "ready")])

    def broadcast(self, job: Job) -> None:
        """Run a job on every host at the same time, and wait for all."""
        if isinstance(job, StartTrial):
            self._hosts.begin(job)
            self._placed = None
        told = None if isinstance(job, StartTrial) else job

        def tell(number: int) -> None:
            with suppress(NoHost):  # there are others
                self._hosts.attempt(number, told)

        call_in_threads(tell, [(number,) for number in self._hosts.working])
        self._say()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        """Give clients' jobs to hosts as they become free; a client's jobs go to its own host.

        Raises:
            HostFailure: A job crashed three hosts, or a client could not be restored.
            Late: A job did not end.
        """
        mine = [job for job in jobs if isinstance(job, ClientJob)]
        assert len(mine) == len(jobs), "a job that concerns no client is for broadcast"
        self._hosts.assigned = {}
        self._move(self._places(mine))
        try:
            for item in JobQueue(self._hosts, mine).replies():
                self._say()
                if item is not None:
                    job, reply = item
                    if isinstance(job, Train) and not isinstance(reply, Absent):
                        self._seconds.add(job.client, job.when, sum(reply.seconds.values()))
                    yield item
        finally:
            self._say()  # what led to an error, too

    def close(self) -> None:
        """End all hosts."""
        self._hosts.close()

    def _places(self, jobs: list[ClientJob]) -> dict[int, int]:
        """Return the host of each measured client in a new round; empty within a round."""
        first = jobs[0] if jobs else None
        if not isinstance(first, Train) or first.round == self._placed:
            return {}
        self._placed = first.round
        costs = self._seconds.of(job.client for job in jobs)
        hosts = self._hosts.working
        if len(hosts) < 2 or not costs:
            return {}
        homes = {client: self._hosts.home(client) for client in costs}
        return place(costs, {c: home for c, home in homes.items() if home is not None}, hosts)

    def _move(self, places: dict[int, int]) -> None:
        """Take clients from the hosts that they are to leave."""
        leaving: dict[int, list[int]] = {}
        for client, number in places.items():
            home = self._hosts.home(client)
            if home not in (number, None):
                leaving.setdefault(home, []).append(client)
        call_in_threads(self._hosts.release, leaving.items())
        working = self._hosts.working
        self._hosts.assigned = {c: number for c, number in places.items() if number in working}

    def _say(self) -> None:
        while not self._hosts.notes.empty():
            self.report(self._hosts.notes.get())

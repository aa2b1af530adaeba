"""The dispatcher: deals jobs to hosts in other processes, and replaces hosts that end.

A backend says how a host is started and how a job is sent to it; all else is here, the same for
every backend. What a client was trained with since its last file is remembered, so that a client
whose host ended is made again: from that file or its seed, by the same jobs, to the same bits.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from protofl.cores import usable_cores
from protofl.errors import HostFailure
from protofl.hosts.jobs import Job, Reply
from protofl.hosts.placement import Seconds, place
from protofl.hosts.recovery import JOURNAL, Memory, Slot

TRIES = 3
"""Hosts that may end in the same job before the run does."""


class _Host(Protocol):
    def do(self, job: Job) -> Reply: ...

    def close(self) -> None: ...


class _NoHost(Exception):
    """A host ended and could not be replaced."""


class Dispatcher:
    """A pool of hosts that work at the same time.

    A client stays with the host it first trained on. Before a round it is moved where by measured
    seconds the round would otherwise take over a tenth longer. A host that ends is replaced and
    its clients are restored when they are next needed. Results depend on none of it.

    Args:
        start: Starts host number n and returns a handle with two methods: ``do(job)``, which
            returns the `Reply` or raises `HostFailure` where the host ended, and ``close()``,
            which ends the host and may be called twice and from any thread. Where no host can be
            started any more ``start`` raises `HostFailure`; the others then do its work.
        count: Hosts to start.
        journal: Bytes of different downloads to remember, at most.

    Attributes:
        report: Takes a line for the user, in the thread that runs the jobs.
    """

    cores = staticmethod(usable_cores)
    """The numbers of the cores on which this process, and hosts that it starts, may run."""

    def __init__(
        self, start: Callable[[int], _Host], count: int, *, journal: int = JOURNAL
    ) -> None:
        self.report: Callable[[str], None] = lambda line: None
        self._start = start
        self._lock = threading.Condition()
        self._closed = False
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._memory, self._seconds = Memory(journal), Seconds()
        self._trial: Job | None = None
        self._placed: object = None
        self._assigned: dict[int, int] = {}
        self._folder: Path | None = None
        self._slots: list[Slot] = []
        try:
            for number in range(count):
                self._slots.append(Slot(number, start(number)))
        except BaseException:
            self.close()
            raise

    # --- what a pool does -----------------------------------------------------------------------

    def broadcast(self, job: Job) -> None:
        """Have every host do a job at the same time, and wait for all."""
        if job.op == "start_trial":
            files = {int(client): path for client, path in job.values["files"].items()}
            self._memory.forget(files)
            self._trial, self._placed, self._assigned = job, None, {}
            self._clear_folder()
            for slot in self._slots:
                slot.told = False

        def tell(number: int) -> None:
            try:
                self._attempt(number, None if job.op == "start_trial" else job)
            except _NoHost:
                pass  # there are others

        self._at_once(tell, [slot.number for slot in self._slots if not slot.ended])
        self._say()

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        """Deal jobs to hosts as they become free, those of a client to its own.

        Raises:
            HostFailure: A job ended three hosts, or a client could not be restored.
        """
        self._assigned = {}
        self._move(self._places(jobs))
        left = list(jobs)
        busy: set[int] = set()
        done: queue.Queue[tuple[Job, Reply] | BaseException | None] = queue.Queue()

        def take(number: int) -> Job | None:
            with self._lock:
                while left or busy:
                    for position, job in enumerate(left):
                        if self._owner(job) in (number, None):
                            busy.add(number)
                            if job.op == "train":
                                self._assigned[_client(job)] = number
                            return left.pop(position)
                    # A host may yet end, and its clients go to whoever is free.
                    self._lock.wait()
            return None

        def serve(number: int) -> None:
            try:
                while (job := take(number)) is not None:
                    try:
                        done.put((job, self._attempt(number, job)))
                    except _NoHost:
                        with self._lock:
                            left.insert(0, job)
                        break
                    finally:
                        with self._lock:
                            busy.discard(number)
                            self._lock.notify_all()
            except BaseException as error:
                done.put(error)
            done.put(None)

        working = [slot.number for slot in self._slots if not slot.ended]
        for number in working:
            threading.Thread(target=serve, args=(number,), daemon=True).start()
        idle = 0
        try:
            while idle < len(working):
                item = done.get()
                self._say()
                if item is None:
                    idle += 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            with self._lock:
                left.clear()
                self._lock.notify_all()

    def close(self) -> None:
        """End all hosts."""
        with self._lock:
            self._closed = True
            slots = list(self._slots)
        for slot in slots:
            slot.host.close()
        self._clear_folder()

    # --- where clients are ----------------------------------------------------------------------

    def _owner(self, job: Job) -> int | None:
        """The host that a job has to go to; None where any will do."""
        client = _client(job)
        kept = self._memory.clients.get(client)
        slot = kept.here if kept else None
        return slot.number if slot else self._assigned.get(client)

    def _places(self, jobs: list[Job]) -> dict[int, int]:
        """Where the clients of a round go that have been measured; nothing within a round."""
        first = jobs[0] if jobs else None
        if first is None or first.op != "train" or first.values.get("round") == self._placed:
            return {}
        self._placed = first.values.get("round")
        hosts = [slot.number for slot in self._slots if not slot.ended]
        clients = [_client(job) for job in jobs]
        costs = self._seconds.of(clients)
        if len(hosts) < 2 or not costs:
            return {}
        kept = {c: self._memory.clients[c] for c in costs if c in self._memory.clients}
        at = {client: k.here.number for client, k in kept.items() if k.here}
        return place(costs, at, hosts)

    def _move(self, places: dict[int, int]) -> None:
        """Take clients from the hosts that they are to leave."""
        leaving: dict[int, list[int]] = {}
        for client, number in places.items():
            kept = self._memory.clients.get(client)
            slot = kept.here if kept else None
            if slot is not None and slot.number != number:
                leaving.setdefault(slot.number, []).append(client)

        def leave(number: int) -> None:
            slot = self._slots[number]
            try:
                for client in leaving[number]:
                    kept = self._memory.of(client)
                    if kept.jobs or kept.gap:
                        path = self._handover(client)
                        slot.host.do(Job("save", client, {"path": str(path)}))
                        kept.handover = path
                    slot.left.add(client)
                    kept.slot = None
                    slot.host.do(Job("drop", client))
            except HostFailure as failure:
                # What it still held is restored where it is needed.
                try:
                    self._replace(slot, failure)
                except _NoHost:
                    pass

        self._at_once(leave, leaving)
        gone = {slot.number for slot in self._slots if slot.ended}
        self._assigned = {c: number for c, number in places.items() if number not in gone}

    def _handover(self, client: int) -> Path:
        with self._lock:
            if self._folder is None:
                parked = self._trial.values.get("parked") if self._trial else None
                # In the run folder, which hosts on other machines see too where they can.
                if parked is not None:
                    Path(parked).mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="protofl-moved-", dir=parked))
            return self._folder / f"client-{client:05d}.safetensors"

    def _clear_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # --- one job, on a host that may end --------------------------------------------------------

    def _attempt(self, number: int, job: Job | None) -> Reply:
        """Do a job, on as many hosts as it takes; None just tells a host of the trial."""
        ended = 0
        while True:
            slot = self._slots[number]
            try:
                self._tell(slot)
                if job is None:
                    return Reply()
                if job.client is not None:
                    self._bring(slot, job)
                reply: Reply = slot.host.do(job)
            except HostFailure as failure:
                ended += 1
                if ended == TRIES:
                    row = f"{TRIES} hosts in a row ended in this job"
                    raise HostFailure(failure.what, row, failure.do) from failure
                self._replace(slot, failure)
                continue
            if job.client is not None:
                self._remember(job, job.client, reply)
            return reply

    def _tell(self, slot: Slot) -> None:
        """Tell a host of the trial, with the clients' files as they are now."""
        if slot.told or self._trial is None:
            return
        with self._lock:
            files = dict(self._memory.files)
        job, given = self._trial, {str(client): path for client, path in files.items()}
        slot.host.do(Job(job.op, job.client, job.values | {"files": given}, job.blob))
        slot.told, slot.files, slot.left = True, files, set()

    def _bring(self, slot: Slot, job: Job) -> None:
        """See that a job's client is on a host as it was left."""
        client = _client(job)
        with self._lock:
            if job.op != "train" and not self._memory.moved(client):
                return  # it is its seed, anywhere and afterwards too
            kept = self._memory.of(client)
        if kept.slot is slot:
            return
        if kept.handover is not None:
            slot.host.do(Job("load", client, {"path": str(kept.handover)}))
        else:
            known = slot.files.get(client) == kept.base and client not in slot.left
            if kept.base is not None and not known:
                slot.host.do(Job("load", client, {"path": kept.base}))
            for past in kept.jobs:
                slot.host.do(past)
        slot.left.discard(client)
        kept.slot = slot

    def _remember(self, job: Job, client: int, reply: Reply) -> None:
        with self._lock:
            if job.op == "train":
                self._memory.trained(client, job)
                kept = self._memory.of(client)
                if kept.handover is not None:
                    kept.handover.unlink(missing_ok=True)
                    kept.handover = None
                seconds = sum(reply.values.get("seconds", {}).values())
                self._seconds.add(client, str(job.values.get("when")), seconds)
            elif job.op == "save":
                self._memory.saved(client, job.values["path"])

    def _replace(self, slot: Slot, failure: HostFailure) -> None:
        """Start a host in the place of one that ended.

        Raises:
            HostFailure: It had a client that can't be restored, or it was the last.
            _NoHost: None can be started; others have its work.
        """
        with self._lock:
            if self._closed:
                raise failure
            slot.ended = True
            lost = [k for k in self._memory.clients.values() if k.slot is slot]
            gone = [n for n in self._assigned.values() if n == slot.number]
            if gone:
                self._assigned = {c: n for c, n in self._assigned.items() if n != slot.number}
        slot.host.close()
        if any(kept.gap and kept.handover is None for kept in lost):
            raise HostFailure(
                failure.what,
                "what its clients were trained with is too much to remember",
                "with checkpoints (--checkpoint-every 1) they would have been restored; "
                + failure.do,
            ) from failure
        count = f"{len(lost)} client{'s' if len(lost) != 1 else ''}"
        try:
            fresh = Slot(slot.number, self._start(slot.number))
        except HostFailure as refused:
            if all(other.ended for other in self._slots):
                raise refused from failure
            self._notes.put(f"{failure.what}; not replaced ({refused.what}), {count} to restore")
            raise _NoHost from refused
        with self._lock:
            if not self._closed:
                self._slots[slot.number] = fresh
                self._notes.put(f"{failure.what}; replaced, {count} to restore")
                self._lock.notify_all()
                return
        fresh.host.close()
        raise failure

    # --- pieces ---------------------------------------------------------------------------------

    def _say(self) -> None:
        while not self._notes.empty():
            self.report(self._notes.get())

    @staticmethod
    def _at_once(work: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Do something for several hosts at the same time; the first error is raised."""
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def call(number: int) -> None:
            try:
                work(number)
                done.put(None)
            except BaseException as error:
                done.put(error)

        threads = [threading.Thread(target=call, args=(n,), daemon=True) for n in numbers]
        for thread in threads:
            thread.start()
        for _ in threads:
            error = done.get()
            if error is not None:
                raise error


def _client(job: Job) -> int:
    assert job.client is not None, f"{job.op} concerns no client: broadcast it"
    return job.client

"""Pools: the hosts of a run, as a backend opens them, and what a pool may have beside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

from protofl.federation.jobs.jobs import Job, Reply
from protofl.system.files.tensors import Packed


class Pool(Protocol):
    """The hosts of a run, as a backend opens them; `Dispatcher` is one for hosts elsewhere.

    Attributes:
        report: Set by the run: takes a line for the user, in the thread that runs the jobs.
    """

    report: Callable[[str], None]

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply]]:
        """Run clients' jobs, costly ones first; yield each when it is done, in any order.

        Raises:
            HostFailure: A host ended for good; the message names the client it was working on.
        """
        ...

    def broadcast(self, job: Job) -> None:
        """Run a job on every host and wait for all."""
        ...

    def close(self) -> None:
        """End the hosts."""
        ...


@runtime_checkable
class Presence(Protocol):
    """A `Pool` that knows which clients can be reached.

    A round then samples among these clients. If they are fewer than ``--min-clients``, it waits for
    up to ``--wait-for-clients`` seconds. A client that is lost later is `Absent`, reason ``left``.
    """

    def present(self) -> Collection[int]:
        """Return the clients that can be reached now; asked once a second while a round waits."""
        ...


@runtime_checkable
class ClientFiles(Protocol):
    """A `Pool` that keeps the clients' files itself, for clients on machines of their own.

    `Save.path` and `StartTrial.files` are then plain names instead of paths in the run folder, such
    as ``client-00003-t0-r4.safetensors`` for client 3 after round 4 of trial 0, and
    `StartTrial.parked` is None. The pool answers each `Save` with a `SaveReply`. The manifest of
    the run stores its length and checksum, and `StartTrial.checks` has them when the run continues.
    A pool that does not have a file with this checksum raises `HostFailure`, or answers the
    client's next `RoundJob` with `Absent`, reason ``stale``.
    """

    def keep_files(self, names: Collection[str]) -> None:
        """Keep the files of these names, which a run may need; all others may be removed.

        It is called after each commit, and before `StartTrial` if a run continues. The names are
        those of the last two commits, and of rounds that ``--keep`` keeps. A round that is trained
        again after an interruption writes the same names with the same content.
        """
        ...


@runtime_checkable
class AsynchronousPool(Protocol):
    """A `Pool` with `ClientFiles` and `Presence` whose clients train while the run goes on.

    A schedule in real time sends clients jobs without waiting for them. `Train.file` is a plain
    name then: the pool keeps the trained client under it, and the client itself stays what it was
    before, until a `Load` of this name, or until the client's next `Train`.
    """

    def send(self, jobs: Sequence[Job]) -> None:
        """Send a client its jobs, which it does in this order, and return at once.

        Its machine is not busy. A client that can't be reached is `Absent` later.
        """
        ...

    def arrived(self, seconds: float) -> Sequence[tuple[Job, Reply]]:
        """Return jobs that were sent and are done, or `Absent` for those of a lost client.

        Args:
            seconds: How long to wait, at most, until there is one.
        """
        ...

    def busy(self) -> Collection[int]:
        """Return the clients on machines that have not yet answered jobs that were sent."""
        ...


@runtime_checkable
class LeavesFiles(Protocol):
    """A `Pool` in the run's process that can leave the clients' files to the run.

    Attributes:
        unwritten: {path: the tensors for this file} of `Save` jobs, in host memory that does
            not change. None, at first, if `Save` jobs write the files.
    """

    unwritten: dict[str, Packed] | None


@runtime_checkable
class NamedHosts(Protocol):
    """A `Pool` whose hosts have names that the user knows, such as nodes of a federation."""

    def host_of(self, client: int) -> str:
        """Return the name of the host of a client."""
        ...


@runtime_checkable
class Starting(Protocol):
    """A `Pool` whose hosts start beside the program, and may not be able to compute."""

    def ready(self) -> None:
        """Wait until all hosts have started.

        Raises:
            UsageError: A host can't compute on its device.
        """
        ...


def keep_files(pool: Pool, names: Collection[str]) -> None:
    """Tell a pool that keeps the clients' files which of them the run may need."""
    if isinstance(pool, ClientFiles):
        pool.keep_files(names)

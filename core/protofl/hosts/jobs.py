"""Jobs: what crosses between a run and its hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Job:
    """What a host is asked to do.

    Attributes:
        op: The operation: a method of `Host`.
        client: The client that it concerns; None for the whole host.
        values: Its arguments: scalars and strings.
        blob: The client's download.
    """

    op: str
    client: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""


@dataclass
class Reply:
    """What a host answers: scalars, and the client's upload."""

    values: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""


class Pool(Protocol):
    """The hosts of a run, as a backend opens them; `Dispatcher` is one for hosts elsewhere.

    Attributes:
        report: Set by the run: takes a line for the user, in the thread that runs the jobs.
    """

    report: Callable[[str], None]

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        """Carry out clients' jobs, costly ones first, and yield each as it is done, in any order.

        Raises:
            HostFailure: A host ended for good; the message names the client it was working on.
        """
        ...

    def broadcast(self, job: Job) -> None:
        """Have every host do a job and wait for all."""
        ...

    def close(self) -> None:
        """End the hosts."""
        ...

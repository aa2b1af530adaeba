"""The backend without processes: one host, here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import protofl as pf


class LocalPool:
    """One host in this process."""

    report: Callable[[str], None]

    def __init__(self, plan: pf.Plan) -> None:
        self._host = pf.Host(plan)

    def run(self, jobs: Sequence[pf.Job]) -> Iterator[tuple[pf.Job, pf.Reply]]:
        """Do one job after the other, or those together that the engine trains as a group."""
        yield from self._host.handle_many(jobs)

    def broadcast(self, job: pf.Job) -> None:
        """Do a job."""
        self._host.handle(job)

    def close(self) -> None:
        """Nothing to end."""


class Local:
    """All clients in this process, one after the other."""

    @pf.hookimpl
    def open_pool(self, plan: pf.Plan) -> LocalPool:
        """One host, whatever the number of workers asked for."""
        return LocalPool(plan)

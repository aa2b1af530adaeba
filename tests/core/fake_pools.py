"""Pools of one host that do what machines of their own do: lose clients, at any stage."""

from __future__ import annotations

import protofl as pf
from protofl.federation.jobs import Absent, Train, Undo


class LosingPool(pf.backends.Host):
    """A host that loses clients.

    Args:
        plan: The run.
        lost: {(stage, client, round): reason}; stages are before_upload, after_server, evaluate.
        late: Whether the client does the job and its reply is lost; otherwise it does nothing.
    """

    def __init__(self, plan, lost, *, late=False):
        super().__init__(plan)
        self._lost, self._late = lost, late

    def run(self, jobs):
        gone, rest = {}, []
        for job in jobs:
            at = getattr(job, "when", job.op), job.client, getattr(job, "round", None)
            if at in self._lost:
                gone[job.client] = job, self._lost[at]
            else:
                rest.append(job)
        for job, reason in gone.values():
            if self._late:
                self.handle(job)
                if isinstance(job, Train):
                    self.handle(Undo(job.client))
            yield job, Absent(reason=reason)
        yield from super().run(rest)

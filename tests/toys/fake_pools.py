"""Fake pools of one host: lost clients, clients' own files, and reachable clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import protofl as pf
from protofl.backends import Absent, SaveReply
from protofl.federation.jobs.jobs import Save, Train, Undo
from protofl.system.files.checksums import Check


class LosingPool(pf.backends.Host):
    """A host that loses clients.

    Args:
        plan: The run.
        lost: {(stage, client, round): reason}; stages are before_upload, after_server, evaluate.
        late: True if the client does the job and its reply is lost; otherwise it does nothing.
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


class KeepingPool(LosingPool):
    """A host that keeps the clients' files in its own folder.

    Attributes:
        kept: The names passed to the last call of `keep_files`.
    """

    def __init__(self, plan, folder, lost=()):
        super().__init__(plan, lost)
        self.folder, self.kept = folder, None
        folder.mkdir(exist_ok=True)

    def handle(self, job):
        if not isinstance(job, Save):
            return super().handle(job)
        assert Path(job.path).name == job.path
        path = self.folder / job.path
        reply = super().handle(replace(job, path=str(path)))
        check = Check.of(path)
        return SaveReply(reply.seconds, size=check.size, crc=check.crc)

    def broadcast(self, job):
        assert job.parked is None
        assert job.files.keys() == job.checks.keys()
        for client, name in job.files.items():
            if Check.of(self.folder / name).values != job.checks[client]:
                raise pf.backends.HostFailure(f"client {client} is stale")
        super().broadcast(
            replace(job, files={c: str(self.folder / name) for c, name in job.files.items()})
        )

    def keep_files(self, names):
        self.kept = {*names}
        for path in self.folder.iterdir():
            if path.name not in self.kept:
                path.unlink()


class PresentPool(LosingPool):
    """A host that knows which clients can be reached.

    Args:
        plan: The run.
        present: The reachable clients for each call of `present`; the last entry repeats.
    """

    def __init__(self, plan, present):
        super().__init__(plan, {})
        self._looks, self.looks = [*present], 0

    def present(self):
        self.looks += 1
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

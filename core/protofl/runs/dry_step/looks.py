"""What hooks look for in downloads and don't find, noted by the dry step alone."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protofl.federation.hosts.jobs import Evaluate, Job, Train
from protofl.hooks.wire.payload import Payload


class Watched(Payload):
    """A download that notes what is looked for in vain."""

    holder = "the download"

    def __init__(self, tensors: Mapping[str, Tensor], looks: Looks) -> None:
        super().__init__(tensors)
        self._looks = looks

    def __missing__(self, key: str) -> Tensor:
        self._looks.missed(key)
        return super().__missing__(key)

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        if not found and isinstance(key, str):
            self._looks.missed(key)
        return found

    def under(self, prefix: str) -> dict[str, Tensor]:
        """As `Payload.under`."""
        found = super().under(prefix)
        if not found:
            self._looks.missed(f"{prefix}/…")
        return found


class Looks:
    """What hooks looked for in vain, of all clients.

    Attributes:
        training: In the downloads of the last round's training: {key: ``METHOD.HOOK``}.
        evaluation: The same in the last evaluation of a client.
        reader: The client's hook that was called last, ``METHOD.HOOK``; empty for another's.
    """

    def __init__(self) -> None:
        self.training: dict[str, str] = {}
        self.evaluation: dict[str, str] = {}
        self.reader = ""
        self._now = self.training
        self._round = -1

    def begin(self, job: Job) -> None:
        """A host is about to do a job."""
        if isinstance(job, Evaluate):
            self._now = self.evaluation = {}
        elif isinstance(job, Train):
            if job.round != self._round:
                self.training, self._round = {}, job.round
            self._now = self.training

    def read(self, payload: Payload) -> Payload:
        """A download as hooks are to see it."""
        self.reader = ""  # until a hook of this client is called
        return Watched(payload, self)

    def missed(self, key: str) -> None:
        """A key is looked for in vain, in a download of this round or of the last."""
        self._now.setdefault(key, self.reader)

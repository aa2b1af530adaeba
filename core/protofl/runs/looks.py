"""What hooks look for in downloads and don't find, noted by the dry step alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofl.errors import MissingKey, WrongShape
from protofl.hosts.jobs import Evaluate, Job, Train
from protofl.wire.payload import Payload


class Watched(Payload):
    """A download that knows which hook reads it, and notes what that looks for in vain.

    Attributes:
        reader: The hook that reads at the moment, ``METHOD.HOOK``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], looks: Looks) -> None:
        super().__init__(tensors)
        self._looks, self.reader = looks, ""

    def _note(self, key: str) -> None:
        self._looks.missed(key, self.reader)

    def __missing__(self, key: str) -> Tensor:
        self._note(key)
        raise MissingKey(key, self.holder, self, self.reader)

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        if not found and isinstance(key, str):
            self._note(key)
        return found

    def rows(self, name: str, width: int | None = None) -> tuple[Tensor, Tensor]:
        """As `Payload.rows`; the error names the reader."""
        try:
            return super().rows(name, width)
        except WrongShape as error:
            error.reader = self.reader
            raise

    def under(self, prefix: str) -> dict[str, Tensor]:
        """As `Payload.under`."""
        found = super().under(prefix)
        if not found:
            self._note(f"{prefix}/…")
        return found


class Looks:
    """What hooks looked for in vain, of all clients.

    Attributes:
        training: In the downloads of the last round's training: {key: ``METHOD.HOOK``}.
        evaluation: The same in the last evaluation of a client.
    """

    def __init__(self) -> None:
        self.training: dict[str, str] = {}
        self.evaluation: dict[str, str] = {}
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

    def read(self, data: bytes, device: torch.device) -> Payload:
        """A download from its bytes."""
        return Watched(Payload.from_bytes(data, device), self)

    def missed(self, key: str, reader: str) -> None:
        """A hook has looked for a key in vain, in a download of this round or of the last."""
        self._now.setdefault(key, reader)

    def __call__(self, method: str, hook: str, arguments: Mapping[str, Any]) -> None:
        """A method's hook is about to be called."""
        client = arguments.get("client")
        if client is not None and isinstance(client.received, Watched):
            client.received.reader = f"{method}.{hook}"

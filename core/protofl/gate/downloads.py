"""The gate of a host: downloads, before a hook of a client sees them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from protofl.errors import RunFailure
from protofl.gate.contents import Contents
from protofl.gate.declared import Declared
from protofl.gate.faults import RULES, Fault
from protofl.views.run import RunInfo
from protofl.wire.payload import Payload

Read = Callable[[bytes, torch.device], Payload]
"""Makes a download of its bytes."""


class DownloadGate:
    """Reads downloads, and refuses those that are not as the run's methods declare them.

    Args:
        info: The run.
        declared: What the run's methods declare of downloads.
        read: Makes a download of its bytes.
        dry: Whether this is the dry step, which has fewer public samples.
    """

    def __init__(
        self, info: RunInfo, declared: Declared, read: Read = Payload.from_bytes, *, dry: bool
    ) -> None:
        self._declared, self._read = declared, read
        self._contents = Contents(info.num_classes, None if dry else info.public, declared)

    def __call__(self, blob: bytes, device: torch.device) -> Payload:
        """A download from its bytes.

        Raises:
            RunFailure: It breaks a rule.
        """
        try:
            return self._opened(blob, device)
        except Fault as fault:
            near = "" if fault.rule == "finite" else f"{fault.rule}: {RULES[fault.rule]}"
            who = f"it was made by {self._declared.sender}"
            raise RunFailure(f"it holds {fault.words}", near, who) from None

    def _opened(self, blob: bytes, device: torch.device) -> Payload:
        for name in self._contents.header(blob):
            if self._declared.names is not None and not self._declared.covers(name):
                raise Fault(name, "names", "which no downloads of its sender declare")
        payload = self._read(blob, device)
        self._contents.check_values(payload, upload=False)
        return payload

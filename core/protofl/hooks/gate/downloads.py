"""The gate of a host: downloads, before a hook of a client sees them."""

from __future__ import annotations

from collections.abc import Callable

from protofl.errors import Diverged, RunFailure
from protofl.hooks.gate.contents import Contents, Decoder
from protofl.hooks.gate.declared import Declared
from protofl.hooks.gate.faults import RULES, Fault
from protofl.hooks.transit.encoding import Codec
from protofl.hooks.views.client import Client
from protofl.hooks.views.run import RunInfo
from protofl.hooks.wire.payload import Payload

Read = Callable[[Payload], Payload]
"""Makes a download of its tensors, as hooks see it."""


class DownloadGate:
    """Reads downloads, and refuses those that are not as the run's methods declare them.

    Args:
        info: The run.
        declared: What the run's methods declare of downloads.
        codec: What wrappers do to downloads on their way.
        read: Makes a download of its tensors, as hooks see it.
        dry: Whether this is the dry step, which has fewer public samples.
    """

    def __init__(
        self,
        info: RunInfo,
        declared: Declared,
        codec: Codec,
        read: Read = Payload,
        *,
        dry: bool,
    ) -> None:
        self._declared, self._read = declared, read
        public = None if dry else info.public
        self._contents = Contents(info.num_classes, public, declared, Decoder(codec))

    def __call__(self, blob: bytes, client: Client) -> Payload:
        """A client's download from its bytes.

        Raises:
            RunFailure: It breaks a rule.
        """
        try:
            return self._opened(blob, client)
        except Fault as fault:
            near = "" if fault.rule == "finite" else f"{fault.rule}: {RULES[fault.rule]}"
            who = f"it was made by {self._declared.sender}"
            kind = Diverged if fault.rule == "finite" else RunFailure
            raise kind(f"it holds {fault.words}", near, who) from None

    def _opened(self, blob: bytes, client: Client) -> Payload:
        forms = self._contents.forms(blob)
        for name in forms[0]:
            if self._declared.names is not None and not self._declared.covers(name):
                raise Fault(name, "names", "which no downloads of its sender declare")
        payload = self._read(self._contents.payload(blob, forms, client.device, client=client))
        self._contents.check_values(payload, upload=False)
        return payload

"""Payload validation: checks of uploads and downloads before hooks see them.

Payload validation learns the expected keys, types and shapes from the dry run, by architecture.
For a key that the dry run has not shown (``--no-dry-run``, a key that a method sends later, or a
further architecture), it takes those of most clients in the first round with this key.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from protofl.errors import Diverged, RunFailure, part_of
from protofl.hooks.transport.contents import ContentRules, ReplacedUploads
from protofl.hooks.transport.encoding import Codec
from protofl.hooks.transport.rules import Declarations, Fault
from protofl.hooks.transport.tensor_specs import Header, Spec, SpecTable, most_common
from protofl.hooks.views.client import Client
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload, PayloadOnDevice
from protofl.system.files.tensors import shown_name
from protofl.system.transfers import has_streams

BOUND = 1e9
"""Largest |x| of an upload by default: squares and sums over clients stay finite in float32.

Uploads of the golden runs stay below 2.
"""

Inspect = Callable[..., Mapping[str, str | None]]
"""Calls ``check_upload`` of all methods."""

Together = Callable[[Mapping[int, Payload]], Mapping[int, Fault]]
"""Returns the faults of uploads that pass one by one, from what is known of their clients."""

Read = Callable[[Payload], Payload]
"""Returns a download as hooks see it."""


class DownloadValidation:
    """Reads downloads, and refuses those that break a rule.

    Args:
        info: The run.
        declared: The downloads' declarations.
        codec: The transforms' encodings of downloads.
        read: Returns a download as hooks see it.
        dry: True in the dry run, which has fewer public samples.
    """

    def __init__(
        self,
        info: RunInfo,
        declared: Declarations,
        codec: Codec,
        read: Read = Payload,
        *,
        dry: bool,
    ) -> None:
        self._declared, self._read = declared, read
        public = None if dry else info.public
        self._contents = ContentRules(info.num_classes, public, declared, codec)
        self._valid: tuple[bytes, PayloadOnDevice | None] | None = None

    def __call__(self, blob: bytes, client: Client) -> Payload:
        """Read a client's download.

        Clients often get the same bytes one after the other. These are checked and copied to the
        device once; each client gets memory of its own, since hooks may write there.

        Raises:
            RunFailure: The download breaks a rule.
        """
        if self._valid is not None and self._valid[0] is blob:
            if (shared := self._valid[1]) is None:
                return self._read(Payload.from_bytes(blob, client.device))
            return self._read(shared.payload(again=True))
        self._valid = None
        try:
            forms = self._contents.forms(blob)
            for name in forms[0]:
                if self._declared.names is not None and not self._declared.covers(name):
                    raise Fault(name, "names", "which no downloads of its sender declare")
            shared = None
            if blob and len(forms) == 1 and has_streams(client.device):
                shared = PayloadOnDevice(blob, client.device)
                payload = shared.payload(again=True)
            else:
                payload = self._contents.payload(blob, forms, client.device, client=client)
            payload = self._read(payload)
            self._contents.check_values(payload, upload=False)
            if len(forms) == 1:  # what is encoded may be decoded by the client
                self._valid = blob, shared
            return payload
        except Fault as fault:
            finite = fault.rule == "finite"
            kind, near = (Diverged, "") if finite else (RunFailure, fault.requirement)
            who = f"it was made by {self._declared.sender}"
            raise kind(f"it holds {fault.problem}", near, who) from None


class UploadValidation:
    """Accepts uploads, or returns their faults.

    Args:
        info: The run.
        declared: The uploads' declarations.
        state: The known specs, as `SpecTable` keeps them; changed in place.
        limits: Largest size of an upload in MiB, and the largest |x|; 0 for any.
        codec: The transforms' encodings of uploads.
        server: The server as hooks see it.
        dry: True in the dry run, from which payload validation learns the specs.
        inspect: Returns the methods' own faults of an upload.
        together: Returns the faults that the uploads of a round have beside each other.

    Attributes:
        replaced: Checks the uploads that ``receive_uploads`` returns.
    """

    def __init__(
        self,
        info: RunInfo,
        declared: Declarations,
        state: dict[str, Any],
        limits: tuple[float, float],
        codec: Codec,
        server: Server,
        *,
        dry: bool = False,
        inspect: Inspect = lambda **_: {},
        together: Together = lambda uploads: {},
    ) -> None:
        self._info, self._declared, self._dry, self._inspect = info, declared, dry, inspect
        self._together = together
        self._known, self._limit = SpecTable(info, declared, state), limits[0] * 2**20
        bound = math.inf if dry else limits[1] or BOUND  # does not depend on the composition
        public = None if dry else info.public
        self._contents = ContentRules(info.num_classes, public, declared, codec, self._limit, bound)
        self._server = server
        self.replaced = ReplacedUploads(info, declared, public)

    def admit(
        self, blobs: Mapping[int, bytes], device: torch.device
    ) -> tuple[dict[int, Payload], dict[int, Fault]]:
        """Return the valid uploads of a round by client, and the faults of the others.

        Args:
            blobs: The bytes that each client sent.
            device: Where the tensors go.
        """
        headers: dict[int, Header] = {}
        forms: dict[int, list[Header]] = {}
        uploads: dict[int, Payload] = {}
        faults: dict[int, Fault] = {}
        for client, blob in blobs.items():
            try:
                if len(blob) > self._limit:
                    raise Fault("", "size", f"{len(blob):,} bytes")
                forms[client] = self._contents.forms(blob)
                headers[client] = forms[client][0]
            except Fault as fault:
                faults[client] = fault
        self._learn(headers)
        sent = Counter(prefix for header in headers.values() for prefix in _parts(header))
        for client, header in headers.items():
            try:
                if not self._dry:
                    self._check(self._architecture(client), header, sent, len(headers))
                uploads[client] = self._open(client, blobs[client], forms[client], device)
            except Fault as fault:
                faults[client] = fault
        beside = self._together(uploads)
        faults |= beside
        uploads = {client: upload for client, upload in uploads.items() if client not in beside}
        return uploads, dict(sorted(faults.items()))

    def _architecture(self, client: int) -> str:
        return self._info.architecture_of(client).name

    def _open(
        self, client: int, blob: bytes, forms: Sequence[Header], device: torch.device
    ) -> Payload:
        """Read the tensors of an upload with a checked header."""
        receiver = {"server": self._server, "client_id": client}
        payload = self._contents.payload(blob, forms, device, **receiver)
        payload.holder = f"the upload of client {client}"
        self._contents.check_values(payload, upload=True)
        for problem in filter(None, self._inspect(**receiver, upload=payload).values()):
            raise Fault("", "method", problem)
        return payload

    # --- learning -------------------------------------------------------------------------------

    def _learn(self, headers: Mapping[int, Header]) -> None:
        if self._dry:
            for client, header in headers.items():
                self._known.see(self._architecture(client), header)
            return
        asked: dict[str, dict[int, Spec]] = {}
        for client, header in headers.items():
            architecture = self._architecture(client)
            for name, entry in header.items():
                new = self._is_new(architecture, name)
                if new and not self._is_alone(client, name, headers):
                    asked.setdefault(name, {})[client] = self._known.spec(name, entry)
        seen = {a: bool(self._known.of(a)) for a in map(self._architecture, headers)}
        for name, sent in asked.items():
            if not self._declared.covers(name) and 2 * len(sent) <= len(headers):
                continue  # an undeclared key needs a majority
            spec, count = most_common(sent.values())
            agreed = "/" not in name and 2 * count > len(sent)  # weights are by architecture
            for architecture in dict.fromkeys(map(self._architecture, sent)):
                if not agreed:
                    specs = [s for c, s in sent.items() if self._architecture(c) == architecture]
                    built = self._known.built(architecture, name)
                    spec = built if built in specs else most_common(specs)[0]
                late = self._known.tried or seen[architecture]
                self._known.put(architecture, name, replace(spec, optional=late))

    def _is_alone(self, client: int, name: str, headers: Mapping[int, Header]) -> bool:
        """Return True if a client adds a tensor to a part that others send without it.

        Layers of an own architecture, and parts that no other client sends, may differ.
        """
        if "/" not in name:
            return False
        architecture, prefix = self._architecture(client), part_of(name)
        if self._known.built(architecture, name):
            return False
        senders = {c: h for c, h in headers.items() if prefix in _parts(h)}
        if 2 * sum(name in header for header in senders.values()) > len(senders):
            return False
        same_architecture = [h for c, h in senders.items() if self._architecture(c) == architecture]
        if 2 * sum(name in header for header in same_architecture) <= len(same_architecture):
            return True
        others = (other for other in headers[client] if part_of(other) == prefix)
        built = any(self._known.built(architecture, other) for other in others)
        return built or self._known.holds_part(architecture, name)

    def _is_new(self, architecture: str, name: str) -> bool:
        """Return True if nothing is known about the key, so any type and shape is accepted."""
        if self._declared.is_exempt(name, "any") or self._known.find(architecture, name):
            return False
        if self._known.tried and self._known.holds_part(architecture, name):
            return False
        return not self._known.tried or self._declared.covers(name)

    # --- rules ----------------------------------------------------------------------------------

    def _check(
        self, architecture: str, header: Header, sent: Mapping[str, int], count: int
    ) -> None:
        """Check a header against the known specs of its client's architecture."""
        for name, entry in header.items():
            if self._declared.is_exempt(name, "any"):
                continue
            spec = self._known.find(architecture, name)
            if spec is None:
                raise Fault(name, "names", "which the server does not expect")
            spec.check(name, entry, self._declared.varying(name))
        # A key that a method leaves out in some rounds is missing in all uploads of the round.
        for name, spec in self._known.expected(architecture).items():
            prefix = part_of(name)
            if name in header or spec.optional or self._declared.is_exempt(name, "optional"):
                continue
            if 2 * sent[prefix] >= count:
                key = name if prefix in _parts(header) else prefix
                raise Fault("", "missing", f"nothing under {shown_name(key)}")


def _parts(header: Header) -> set[str]:
    """Return the keys of a header, with ``PART/*`` for the keys of one part."""
    return {part_of(name) for name in header}

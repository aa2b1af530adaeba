"""The gate of the server: uploads of a round, before hooks see them and after ``receive_uploads``.

What clients send is learned in the dry step, by architecture. A key that no dry step has shown
(``--no-dry-step``, one that a method sends from a later round on, or an architecture that took no
part) is what most clients of the round in which it comes first have sent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from protofl.errors import RunFailure, part_of
from protofl.hooks.gate.contents import Contents, Decoder
from protofl.hooks.gate.declared import Declared
from protofl.hooks.gate.faults import RULES, Fault
from protofl.hooks.gate.returned import described, expect_returned
from protofl.hooks.gate.specs import Header, Known, Spec, most_common
from protofl.hooks.transit.encoding import Codec, form_of
from protofl.hooks.views.run import RunInfo
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import quoted

Uploads = Mapping[int, Payload]


class PassedOn:
    """Holds uploads that a wrapper or a defence has put in the place of others against the rules.

    Those of contents: whose the rows are, numbers of samples, finite numbers; and each tensor has
    the name and type of one that came, or says of which classes its rows are. ``--upload-bound``
    is about what clients send.

    Args:
        info: The run.
        declared: What the run's methods declare of uploads.
        public: Public samples; None where their number is not to be looked at.
    """

    def __init__(self, info: RunInfo, declared: Declared, public: int | None) -> None:
        self._contents = Contents(info.num_classes, public, declared, Decoder(Codec("")))

    def check(self, who: str, found: Any, came: Uploads) -> None:  # noqa: ANN401 - as it came
        """Look at what is others than came.

        Args:
            who: The hook, ``NAME.receive_uploads``.
            found: What it returned.
            came: What it was given.

        Raises:
            RunFailure: It breaks a rule.
        """
        near = "the server's hooks see it in place of the uploads that the gate let in"
        do = "return {client: payload} with clients of those that came, or fewer"
        if not isinstance(found, Mapping):
            raise RunFailure(f"{who} returned {described(found)}", near, do)
        for client, upload in found.items():
            if client not in came:
                raise RunFailure(f"{who} returned an upload of {client!r}", near, do)
            if upload is not came[client]:
                self._check_upload(f"{who}, client {client}:", who, upload, came[client])

    def _check_upload(self, place: str, who: str, upload: Any, came: Payload) -> None:  # noqa: ANN401
        owner = who.partition(".")[0]
        if not isinstance(upload, Payload):
            near, do = "an upload is a payload", "return pf.Payload(upload, NAME=…)"
            raise RunFailure(f"{place} {described(upload)}", near, do)
        expect_returned("upload_payload", owner, upload, {})
        for name, tensor in upload.items():
            like = came.get(name, came.get("classes") if name.endswith(".classes") else None)
            if like is None or tensor.dtype != like.dtype:
                raise RunFailure(
                    f"{place} {name!r} is {described(tensor)}",
                    f"what came: {_names(came)}",
                    "keep names and types; what a method doesn't know, it doesn't read",
                )
        try:
            self._contents.check_header(form_of(upload))
            self._contents.check_values(upload, upload=True)
        except Fault as fault:
            rule = f"{fault.rule}: {RULES[fault.rule]}"
            near = "what came was finite" if fault.rule == "finite" else rule
            raise RunFailure(f"{place} {fault.words}", near, "look at what it computes") from None


def _names(upload: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {str(t.dtype).removeprefix('torch.')}" for name, t in upload.items())


class UploadGate:
    """Lets uploads in, or says what is wrong with them.

    Args:
        info: The run.
        declared: What the run's methods declare of uploads.
        state: What has been learned, as `Known` keeps it; changed in place.
        limits: MiB of an upload, at most, and the largest |x|; 0 for any.
        codec: What wrappers do to uploads on their way.
        server: The server as hooks see it.
        dry: Whether this is the dry step, of which it learns.

    Attributes:
        passed_on: Holds what ``receive_uploads`` makes of uploads against the rules.
    """

    def __init__(
        self,
        info: RunInfo,
        declared: Declared,
        state: dict[str, Any],
        limits: tuple[float, float],
        codec: Codec,
        server: Server,
        *,
        dry: bool = False,
    ) -> None:
        self._info, self._declared, self._dry = info, declared, dry
        self._known, self._limit = Known(info, state), limits[0] * 2**20
        bound = math.inf if dry else limits[1] or math.inf  # no matter of how plugins go together
        self._contents = Contents(
            info.num_classes,
            None if dry else info.public,
            declared,
            Decoder(codec, self._limit),
            bound,
        )
        self._server = server
        self.passed_on = PassedOn(info, declared, None if dry else info.public)

    def admit(
        self, blobs: Mapping[int, bytes], device: torch.device
    ) -> tuple[dict[int, Payload], dict[int, Fault]]:
        """The uploads of a round, by client: those that are as they should be, and the others.

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
        sent = Counter(part for header in headers.values() for part in _parts(header))
        for client, header in headers.items():
            try:
                if not self._dry:
                    self._check(self._architecture(client), header, sent, len(headers))
                uploads[client] = self._open(client, blobs[client], forms[client], device)
            except Fault as fault:
                faults[client] = fault
        return uploads, dict(sorted(faults.items()))

    def _architecture(self, client: int) -> str:
        return self._info.architecture_of(client).name

    def _open(
        self, client: int, blob: bytes, forms: Sequence[Header], device: torch.device
    ) -> Payload:
        """The tensors, when the header is known to be good."""
        receiver = {"server": self._server, "client_id": client}
        payload = self._contents.payload(blob, forms, device, **receiver)
        payload.holder = f"the upload of client {client}"
        self._contents.check_values(payload, upload=True)
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
                if self._is_new(architecture, name):
                    asked.setdefault(name, {})[client] = Spec.of(name, entry)
        seen = {a: bool(self._known.of(a)) for a in map(self._architecture, headers)}
        for name, sent in asked.items():
            if not self._declared.covers(name) and 2 * len(sent) <= len(headers):
                continue  # most would send what is no more than forgotten in the declaration
            spec, count = most_common(sent.values())
            agreed = "/" not in name and 2 * count > len(sent)  # weights are by architecture
            for architecture in dict.fromkeys(map(self._architecture, sent)):
                if not agreed:
                    own = [s for c, s in sent.items() if self._architecture(c) == architecture]
                    built = self._known.built(architecture, name)
                    spec = built if built in own else most_common(own)[0]
                late = self._known.tried or seen[architecture]
                self._known.put(architecture, name, replace(spec, optional=late))

    def _is_new(self, architecture: str, name: str) -> bool:
        """Whether a key may be what it is sent as, as nothing is known of it."""
        if self._declared.is_exempt(name, "any") or self._known.find(architecture, name):
            return False
        if self._known.tried and self._known.holds_part(architecture, name):
            return False
        return not self._known.tried or self._declared.covers(name)

    # --- rules ----------------------------------------------------------------------------------

    def _check(
        self, architecture: str, header: Header, sent: Mapping[str, int], count: int
    ) -> None:
        """Hold a header against what is known of its client's architecture."""
        for name, entry in header.items():
            if self._declared.is_exempt(name, "any"):
                continue
            spec = self._known.find(architecture, name)
            if spec is None:
                raise Fault(name, "names", "which nobody asked for")
            spec.check(name, entry)
        # What a method leaves out in some rounds, all leave out.
        for name, spec in self._known.expected(architecture).items():
            part = part_of(name)
            if name in header or spec.optional or self._declared.is_exempt(name, "optional"):
                continue
            if 2 * sent[part] >= count:
                key = name if part in _parts(header) else part
                raise Fault("", "missing", f"nothing under {quoted(key)}")


def _parts(header: Header) -> set[str]:
    """The keys as one names them: ``PART/…`` of many."""
    return {part_of(name) for name in header}

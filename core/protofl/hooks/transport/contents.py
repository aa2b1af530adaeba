"""Rules for the contents of payloads, whoever made them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.hooks.transport.encoding import Codec, Decoder, form_of
from protofl.hooks.transport.return_values import description, expect_returned
from protofl.hooks.transport.rules import RULES, SAMPLES, Declarations, Fault
from protofl.hooks.transport.tensor_specs import Header, check_ranks, known_key
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.wire.payload import Payload, Uploads
from protofl.system.files.tensors import Entry, tensor_header


class ContentRules:
    """Checks of a payload's contents that do not depend on its sender.

    Args:
        num_classes: C.
        public: Public samples; None where their number is not to be looked at (the dry step
            takes fewer).
        declared: What may be left out of the rules.
        decoder: What takes off the encodings of wrappers.
        bound: The largest |x| of a floating-point tensor.
    """

    def __init__(
        self,
        num_classes: int,
        public: int | None,
        declared: Declarations,
        decoder: Decoder,
        bound: float = math.inf,
    ) -> None:
        self._C, self._public, self._declared, self._bound = num_classes, public, declared, bound
        self._decoder = decoder

    # --- by the header alone --------------------------------------------------------------------

    def forms(self, blob: bytes) -> list[Header]:
        """Check the header of a payload, without comparing it with other payloads.

        Returns:
            The header of the payload first, and, where it is encoded, of what it became.

        Raises:
            Fault: It is no payload, or can't be what it says.
        """
        try:
            header = tensor_header(blob)
        except ValueError as error:
            raise Fault("", "format", f"{len(blob)} bytes that are no payload ({error})") from None
        forms = self._decoder.forms(blob, header)
        self.check_header(forms[0])
        return forms

    def check_header(self, header: Header) -> None:
        """Check rows and ranks of a header.

        Raises:
            Fault: It can't.
        """
        self._check_rows(header)
        check_ranks(header)

    def _check_rows(self, header: Header) -> None:
        """Check types and numbers of rows.

        Raises:
            Fault: ``classes`` are no classes, or a tensor has another number of rows.
        """
        for name, entry in header.items():
            if _names_classes(name) or name == "public_index":
                self._check_indices(name, entry)
        for name, entry in header.items():
            key = known_key(name)
            if key is None or "/" in name or self._declared.is_exempt(name, "any"):
                continue
            if key.by_class:
                own = f"{name}.classes"
                self._same_rows(name, entry, header, own if own in header else "classes")
            elif key.shape.startswith("[N") and name != "public_index":
                self._same_rows(name, entry, header, "public_index")

    def _check_indices(self, name: str, entry: Entry) -> None:
        if entry.dtype != "I64" or len(entry.shape) != 1:
            words = f"as {entry.dtype}{list(entry.shape)}, it is one int64 a row"
            raise Fault(name, "classes", words)
        if name == "public_index":
            most = self._public
        else:
            most = None if self._declared.is_exempt(name, "several") else self._C
        if most is not None and entry.shape[0] > most:
            raise Fault(name, "classes", f"with {entry.shape[0]} rows of {most} at most")

    def _same_rows(self, name: str, entry: Entry, header: Header, index: str) -> None:
        if index in header:
            wanted, whose = header[index].shape[0], f"{index!r} has"
        elif index == "public_index" and self._public is not None:
            wanted, whose = self._public, "the public samples are"
        else:
            return
        rows = entry.shape[0] if entry.shape else 0
        if rows != wanted:
            raise Fault(name, "rows", f"with {rows} rows where {whose} {wanted}")

    # --- by the values --------------------------------------------------------------------------

    def payload(
        self, blob: bytes, forms: Sequence[Header], device: torch.device, **receiver: object
    ) -> Payload:
        """Read the tensors of a payload whose forms have been checked.

        Raises:
            Fault: They can't be decoded.
        """
        try:
            if len(forms) == 1:
                return Payload.from_bytes(blob, device)
            wire = Payload.from_bytes(blob)
        except RunFailure as error:
            raise Fault("", "format", error.what) from error
        found = self._decoder.payload(wire, forms, **receiver)
        return Payload({name: tensor.to(device) for name, tensor in sorted(found.items())})

    def check_values(self, payload: Payload, *, upload: bool) -> None:
        """Check classes, numbers of samples, and that all numbers are finite.

        Raises:
            Fault: One is none.
        """
        self.check_classes(payload, upload=upload)
        self.check_finite(payload)

    def check_classes(self, payload: Mapping[str, Tensor], *, upload: bool) -> None:
        """Check classes and numbers of samples.

        Raises:
            Fault: One is none.
        """
        for name, tensor in payload.items():
            if _names_classes(name):
                several = self._declared.is_exempt(name, "several")
                _check_range(name, tensor, self._C, "class", several=several)
            elif name == "public_index":
                _check_range(name, tensor, self._public, "public sample", several=False)
            elif upload and name in ("samples", "counts") and not tensor.is_floating_point():
                _check_counts(name, tensor)

    def check_finite(self, payload: Payload) -> None:
        """Check that all numbers are finite and within the bound.

        Raises:
            Fault: One is not.
        """
        bad = payload.nonfinite(self._bound)
        if bad is None:
            return
        if Payload({bad: payload[bad]}).nonfinite() is not None:
            raise Fault(bad, "finite", "with NaN or infinity")
        largest = float(payload[bad].abs().max())
        raise Fault(bad, "bound", f"with {largest:.3g}, larger than {self._bound:g}")


def _names_classes(name: str) -> bool:
    return name == "classes" or (name.endswith(".classes") and "/" not in name)


def _check_range(name: str, tensor: Tensor, end: int | None, noun: str, *, several: bool) -> None:
    found = tensor.tolist()
    if not found:
        return
    low, high = min(found), max(found)
    wrong = low if low < 0 else high
    if low < 0 or (end is not None and high >= end):
        raise Fault(name, "classes", f"with {noun} {wrong} of {end}" if end else f"with {wrong}")
    if not several and len(set(found)) < len(found):
        twice = next(value for value in found if found.count(value) > 1)
        raise Fault(name, "classes", f"with {noun} {twice} twice")


def _check_counts(name: str, tensor: Tensor) -> None:
    if not tensor.numel():
        return
    low, high = int(tensor.min()), int(tensor.max())
    if low < 1 or high > SAMPLES:
        raise Fault(name, "counts", f"with {low if low < 1 else high} samples")


class ReplacedUploads:
    """Checks uploads that a wrapper or a defence returned in place of others.

    Those of contents: whose the rows are, numbers of samples, finite numbers; and each tensor has
    the name and type of one that came, or says of which classes its rows are. ``--upload-bound``
    is about what clients send.

    Args:
        info: The run.
        declared: What the run's methods declare of uploads.
        public: Public samples; None where their number is not to be looked at.
    """

    def __init__(self, info: RunInfo, declared: Declarations, public: int | None) -> None:
        self._contents = ContentRules(info.num_classes, public, declared, Decoder(Codec("")))

    def check(self, who: str, found: Any, came: Uploads) -> None:  # noqa: ANN401 - as it came
        """Check the uploads that were replaced.

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
            raise RunFailure(f"{who} returned {description(found)}", near, do)
        for client, upload in found.items():
            if client not in came:
                raise RunFailure(f"{who} returned an upload of {client!r}", near, do)
            if upload is not came[client]:
                self._check_upload(f"{who}, client {client}:", who, upload, came[client])

    def _check_upload(self, place: str, who: str, upload: Any, came: Payload) -> None:  # noqa: ANN401
        owner = who.partition(".")[0]
        if not isinstance(upload, Payload):
            near, do = "an upload is a payload", "return pf.Payload(upload, NAME=…)"
            raise RunFailure(f"{place} {description(upload)}", near, do)
        expect_returned("upload_payload", owner, upload, {})
        for name, tensor in upload.items():
            like = came.get(name, came.get("classes") if name.endswith(".classes") else None)
            if like is None or tensor.dtype != like.dtype:
                raise RunFailure(
                    f"{place} {name!r} is {description(tensor)}",
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

"""Rules for the contents of payloads: rows, classes, numbers of samples, finite values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.hooks.transport.encoding import Codec, form_of
from protofl.hooks.transport.return_values import description, expect_returned
from protofl.hooks.transport.rules import SAMPLES, Declarations, Fault
from protofl.hooks.transport.tensor_specs import Header, check_ranks
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.wire.payload import Payload, Uploads, moved, on_host
from protofl.system.files.tensors import TensorEntry, tensor_header


class ContentRules:
    """Checks of a payload's contents that do not depend on its sender.

    Args:
        num_classes: C.
        public: Public samples; None if their number is not checked (the dry run takes fewer).
        declared: The declarations, with exemptions from the rules.
        codec: The encodings of the transforms.
        limit: Largest decoded size in bytes.
        bound: The largest |x| of a floating-point tensor.
    """

    def __init__(
        self,
        num_classes: int,
        public: int | None,
        declared: Declarations,
        codec: Codec | None = None,
        limit: float = math.inf,
        bound: float = math.inf,
    ) -> None:
        self._C, self._public, self._declared, self._bound = num_classes, public, declared, bound
        self._codec, self._limit = codec or Codec(), limit

    # --- by the header alone --------------------------------------------------------------------

    def forms(self, blob: bytes) -> list[Header]:
        """Check the header of a payload, without comparing it with other payloads.

        Returns:
            The header of the payload first, then, if it is encoded, of each transform's output.

        Raises:
            Fault: The bytes are not a payload, or break a rule.
        """
        try:
            header = tensor_header(blob)
        except ValueError as error:
            raise Fault(
                "", "format", f"{len(blob)} bytes that are not a payload ({error})"
            ) from None
        forms = self._codec.forms(blob, header, self._limit)
        self.check_header(forms[0])
        return forms

    def check_header(self, header: Header) -> None:
        """Check types, numbers of rows and ranks of a header.

        Raises:
            Fault: ``classes`` are invalid, or a tensor has another number of rows or another rank.
        """
        for name, entry in header.items():
            if _names_classes(name) or name == "public_index":
                self._check_indices(name, entry)
        for name, entry in header.items():
            key = self._declared.keys.find(name)
            if key is None or "/" in name or self._declared.is_exempt(name, "any"):
                continue
            if key.by_class:
                class_key = f"{name}.classes"
                self._same_rows(
                    name, entry, header, class_key if class_key in header else "classes"
                )
            elif key.is_of_public_samples and name != "public_index":
                self._same_rows(name, entry, header, "public_index")
        check_ranks(header, self._declared)

    def _check_indices(self, name: str, entry: TensorEntry) -> None:
        if entry.dtype != "I64" or len(entry.shape) != 1:
            problem = f"as {entry.dtype}{list(entry.shape)}, it is one int64 a row"
            raise Fault(name, "classes", problem)
        if name == "public_index":
            most = self._public
        else:
            several = self._declared.number(name, "several")
            most = None if several == 0 else self._C * (several or 1)
        if most is not None and entry.shape[0] > most:
            raise Fault(name, "classes", f"with {entry.shape[0]} rows of {most} at most")

    def _same_rows(self, name: str, entry: TensorEntry, header: Header, index: str) -> None:
        if index in header:
            expected, whose = header[index].shape[0], f"{index!r} has"
        elif index == "public_index" and self._public is not None:
            expected, whose = self._public, "the public samples are"
        else:
            return
        rows = entry.shape[0] if entry.shape else 0
        if rows != expected:
            raise Fault(name, "rows", f"with {rows} rows where {whose} {expected}")

    # --- by the values --------------------------------------------------------------------------

    def payload(
        self, blob: bytes, forms: Sequence[Header], device: torch.device, **receiver: object
    ) -> Payload:
        """Read the tensors of a payload whose forms have been checked.

        Raises:
            Fault: The payload can't be decoded.
        """
        try:
            if len(forms) == 1:
                return Payload.from_bytes(blob, device)
            wire = Payload.from_bytes(blob)
        except RunFailure as error:
            raise Fault("", "format", error.what) from error
        decoded = self._codec.decode(wire, forms, **receiver)
        return moved(Payload(dict(sorted(decoded.items()))), device)

    def check_values(self, payload: Payload, *, upload: bool) -> None:
        """Check classes, numbers of samples, and that all numbers are finite.

        Raises:
            Fault: A value is invalid.
        """
        self.check_classes(payload, upload=upload)
        self.check_finite(payload)

    def check_classes(self, payload: Mapping[str, Tensor], *, upload: bool) -> None:
        """Check classes and numbers of samples.

        Raises:
            Fault: A class or number is invalid.
        """
        for name, tensor in payload.items():
            if _names_classes(name):
                several = self._declared.number(name, "several")
                most = 1 if several is None else several or len(tensor)
                _check_range(name, on_host(payload, name), self._C, "class", most)
            elif name == "public_index":
                _check_range(name, on_host(payload, name), self._public, "public sample")
            elif upload and name in ("samples", "counts") and not tensor.is_floating_point():
                _check_counts(name, on_host(payload, name))

    def check_finite(self, payload: Payload) -> None:
        """Check that all numbers are finite and within the bound.

        Raises:
            Fault: A number is not.
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


def _check_range(name: str, tensor: Tensor, end: int | None, noun: str, most: int = 1) -> None:
    counts = Counter(tensor.tolist())
    for value, count in counts.items():
        if value < 0 or (end is not None and value >= end):
            of = f" of {end}" if end else ""
            raise Fault(name, "classes", f"with {noun} {value}{of}")
        if count > most:
            times = "twice" if most == 1 else f"{count} times, at most {most} are declared"
            raise Fault(name, "classes", f"with {noun} {value} {times}")


def _check_counts(name: str, tensor: Tensor) -> None:
    for number in (tensor.min(), tensor.max()) if tensor.numel() else ():
        if not 1 <= int(number) <= SAMPLES:
            raise Fault(name, "counts", f"with {int(number)} samples")


class ReplacedUploads:
    """Checks uploads that a transform or a defence returned in place of others.

    Their contents follow the rules of payload validation, except ``--upload-bound``, which concerns
    clients. Each tensor has the name and type of a received one, or names the classes of its rows.

    Args:
        info: The run.
        declared: The uploads' declarations.
        public: Public samples; None if their number is not checked.
    """

    def __init__(self, info: RunInfo, declared: Declarations, public: int | None) -> None:
        self._contents = ContentRules(info.num_classes, public, declared)

    def check(self, who: str, returned: Any, came: Uploads) -> None:  # noqa: ANN401 - a hook's
        """Check the uploads that a hook returned.

        Args:
            who: The hook, ``NAME.receive_uploads``.
            returned: Its return value.
            came: Its argument.

        Raises:
            RunFailure: An upload breaks a rule.
        """
        near = "it replaces the uploads that the server's hooks see"
        do = "return {client: payload} with clients of the given uploads, or fewer"
        if not isinstance(returned, Mapping):
            raise RunFailure(f"{who} returned {description(returned)}", near, do)
        for client, upload in returned.items():
            if client not in came:
                raise RunFailure(f"{who} returned an upload of {client!r}", near, do)
            if upload is not came[client]:
                self._check_upload(who, client, upload, came[client])

    def _check_upload(self, who: str, client: int, upload: Any, came: Payload) -> None:  # noqa: ANN401
        place = f"{who}, client {client}:"
        if not isinstance(upload, Payload):
            near, do = "an upload is a payload", "return pf.Payload(upload, NAME=…)"
            raise RunFailure(f"{place} {description(upload)}", near, do)
        expect_returned("upload_payload", who.partition(".")[0], upload, {})
        for name, tensor in upload.items():
            like = came.get(name, came.get("classes") if name.endswith(".classes") else None)
            if like is None or tensor.dtype != like.dtype:
                near = ", ".join(f"{n} {description(t)}" for n, t in came.items())
                do = "keep names and types, as methods read no others"
                raise RunFailure(f"{place} {name!r} is {description(tensor)}", f"given: {near}", do)
        try:
            self._contents.check_header(form_of(upload))
            self._contents.check_values(upload, upload=True)
        except Fault as fault:
            finite = fault.rule == "finite"
            near = "all given uploads were finite" if finite else fault.requirement
            raise RunFailure(f"{place} {fault.problem}", near, "look at what it computes") from None

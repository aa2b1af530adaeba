"""Rules for the contents of payloads, and for encoded ones before they are decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protofl.errors import RunFailure, in_words
from protofl.hooks.gate.declared import Declared
from protofl.hooks.gate.faults import Fault
from protofl.hooks.gate.specs import Header, check_ranks, known_key
from protofl.hooks.transit.encoding import KEY, Codec, Form, form_of, hollow, read_forms
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import Entry, short, tensor_header, words_beside


class Decoder:
    """Decodes what comes, or says what is wrong with it.

    Args:
        codec: The encodings.
        limit: Bytes of what is decoded, at most.
    """

    def __init__(self, codec: Codec, limit: float = math.inf) -> None:
        self._codec, self._limit = codec, limit

    def forms(self, blob: bytes, wire: Form) -> list[Form]:
        """The form of the payload, of what each wrapper made of it, and of what came.

        Args:
            blob: What came; its own header has been found to be good.
            wire: Its own form.

        Raises:
            Fault: It has no such forms, or they are of too much, or of what nobody asked for.
        """
        if not (self._codec.codings and blob):
            return [wire]
        try:
            forms = read_forms(words_beside(blob, KEY), len(self._codec.codings), wire)
        except ValueError as error:
            raise Fault("", "encoding", f"what can't be decoded ({error})") from None
        for form in forms[:-1]:
            size = sum(entry.size for entry in form.values())
            if size > self._limit:
                raise Fault("", "size", f"{size:,} bytes when decoded")
        for coding, form, became in zip(self._codec.codings, forms, forms[1:], strict=False):
            for name in became:
                if not coding.covers(name, form):
                    raise Fault(name, "names", f"which {coding.name} does not declare")
        return forms

    def payload(self, wire: Payload, forms: Sequence[Form], **receiver: object) -> Payload:
        """What the receiver sees; decoded on the CPU, where a wrong index is an error.

        Args:
            wire: What came, on the CPU.
            forms: Its `forms`.
            **receiver: What hooks are told of the receiver: ``client``, or ``server, client_id``.

        Raises:
            Fault: A wrapper can't decode it, or makes of it what its form does not say.
        """
        bad = wire.nonfinite() if len(forms) > 1 else None
        if bad is not None:
            raise Fault(bad, "finite", "with NaN or infinity")
        for coding, form in reversed([*zip(self._codec.codings, forms, strict=False)]):
            hook = f"decode_{self._codec.direction} of {coding.name}"
            try:
                wire = Payload(coding.decode(payload=wire, form=hollow(form), **receiver))
                found = form_of(wire)
            except Exception as error:
                words = f"what {hook} can't read: {short(in_words(error))}"
                raise Fault("", "encoding", words) from error
            for name in (*form, *found):
                if found.get(name) != form.get(name):
                    raise Fault(name, "encoding", f"of which {hook} makes another than it was")
        return wire


SAMPLES = 1 << 40
"""Samples of a client, at most."""


class Contents:
    """What the contents of a payload must be, whoever sends it.

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
        declared: Declared,
        decoder: Decoder,
        bound: float = math.inf,
    ) -> None:
        self._C, self._public, self._declared, self._bound = num_classes, public, declared, bound
        self._decoder = decoder

    # --- by the header alone --------------------------------------------------------------------

    def forms(self, blob: bytes) -> list[Header]:
        """What a payload says that it holds, so far as that needs no look at others.

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
        """What a payload says that it holds can be, as far as that needs no look at others.

        Raises:
            Fault: It can't.
        """
        self._check_rows(header)
        check_ranks(header)

    def _check_rows(self, header: Header) -> None:
        """Types and numbers of rows.

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
        """The tensors of a payload whose forms are known to be good.

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
        """Classes, numbers of samples, and that all numbers are finite.

        Raises:
            Fault: One is none.
        """
        self.check_classes(payload, upload=upload)
        self.check_finite(payload)

    def check_classes(self, payload: Mapping[str, Tensor], *, upload: bool) -> None:
        """Classes and numbers of samples.

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
        """That all numbers are finite, and within the bound.

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

"""Encodings: transforms encode payloads and describe the original tensors by forms.

A form holds the names, types and shapes of the encoded tensors. A receiver checks the form by the
rules of payload validation before it decodes anything.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from protofl.errors import RunFailure, UsageError, error_context, error_text
from protofl.hooks.transport.rules import Fault
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import (
    TYPES,
    TensorEntry,
    checked_entry,
    metadata_value,
    shown,
    shown_name,
    strict_json,
    tensor_header,
)

KEY = "forms"
"""The key of the forms in the metadata of a payload's bytes."""


Form = Mapping[str, TensorEntry]


_TORCH = {name: dtype for dtype, name in TYPES.items()}


def form_of(payload: Mapping[str, Tensor]) -> Form:
    """Return the form of tensors.

    Raises:
        RunFailure: A tensor has a type that can't be encoded.
    """
    for name, tensor in payload.items():
        if tensor.dtype not in TYPES:
            raise RunFailure(f"{name!r} is of type {tensor.dtype}, which no encoding can restore")
    return {name: TensorEntry(TYPES[t.dtype], tuple(t.shape)) for name, t in payload.items()}


def empty_tensors(form: Form) -> Payload:
    """Return tensors of a form without content, on the device ``meta``.

    Raises:
        ValueError: A tensor has a type that torch lacks.
    """
    if wrong := [name for name, entry in form.items() if entry.dtype not in _TORCH]:
        raise ValueError(f"{shown_name(wrong[0])} has a type that cannot be restored")
    empty = partial(torch.empty, device="meta")
    return Payload({n: empty(e.shape, dtype=_TORCH[e.dtype]) for n, e in form.items()})


def write_forms(forms: Sequence[Form]) -> str:
    """Write all forms except the last as text: ``[{"prototypes":["F32",7,512]}]``.

    A form that equals the next one is written as null.
    """
    rows = [
        None if form == became else {name: [e.dtype, *e.shape] for name, e in form.items()}
        for form, became in pairwise(forms)
    ]
    return json.dumps(rows, separators=(",", ":"))


def declared_form(blob: bytes) -> Form:
    """Return the form of a payload in bytes of this process, encoded or not."""
    wire = tensor_header(blob)
    text = metadata_value(blob, KEY) if blob else ""
    return read_forms(text, len(json.loads(text)), wire)[0] if text else wire


def read_forms(text: str, count: int, wire: Form) -> list[Form]:
    """Read what `write_forms` wrote, from an untrusted sender.

    Args:
        text: The text.
        count: The number of forms in it.
        wire: The last form.

    Raises:
        ValueError: The number is wrong, or a form is invalid.
    """
    rows = strict_json(text.encode()) if text else []
    if not (isinstance(rows, list) and len(rows) == count):
        raise ValueError(f"expected {count} forms, got {shown(rows)}")
    forms = [wire]
    for row in reversed(rows):
        forms.append(forms[-1] if row is None else _form(row))
    return forms[::-1]


def _form(row: object) -> Form:
    if not isinstance(row, dict) or not all(isinstance(v, list) and v for v in row.values()):
        raise ValueError(f"expected a form, got {shown(row)}")
    return {name: checked_entry(name, kind, shape) for name, (kind, *shape) in row.items()}


@dataclass(frozen=True)
class Coding:
    """The two sides of a transform in one direction.

    Attributes:
        name: The transform.
        encode: Its ``encode_…``, with the hook's arguments.
        decode: Its ``decode_…``.
        parts: Names that it declares to add to those of the payload.
        each: True if it encodes the same payload anew for each client.
    """

    name: str
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    parts: Collection[str]
    each: bool

    def covers(self, name: str, form: Form) -> bool:
        """Return True if a name may be on the wire: from the form, declared, or both."""
        owner, _, suffix = name.rpartition(".")
        return name in form or name in self.parts or (owner in form and suffix in self.parts)


def coding_of(direction: str, name: str, plugin: Any, call: Callable[..., Any]) -> Coding | None:  # noqa: ANN401 - a plugin's class
    """Return the two sides of a transform, or None.

    Args:
        direction: ``upload`` or ``download``.
        name: The transform.
        plugin: Its class.
        call: Calls a hook of the transform by its name, with the hook's arguments.

    Raises:
        UsageError: The transform has one side only.
    """
    sides = [f"{side}_{direction}" for side in ("encode", "decode")]
    lacks = [hook for hook in sides if not hasattr(plugin, hook)]
    if lacks == sides:
        return None
    if lacks:
        do = f"write {lacks[0]}: each side needs the other"
        raise UsageError(f"transform {name!r} lacks {lacks[0]}", do=do)
    each = "client_id" in inspect.signature(getattr(plugin, sides[0])).parameters
    encode, decode = (partial(call, hook) for hook in sides)
    return Coding(name, encode, decode, getattr(plugin, "encodes", {}), each)


class Codec:
    """The encodings of one direction; without transforms it changes nothing.

    Args:
        direction: ``upload`` or ``download``.
        codings: The transforms' encodings, in the order of ``--with``.

    Attributes:
        direction: The direction.
        codings: The encodings.
        each: True if two clients that get the same payload may get different bytes.
    """

    def __init__(self, direction: str = "", codings: Iterable[Coding | None] = ()) -> None:
        self.direction = direction
        self.codings = [coding for coding in codings if coding is not None]
        self.each = any(coding.each for coding in self.codings)

    def pack(self, payload: Payload, **sender: object) -> tuple[int, bytes]:
        """Encode a payload; return its number of floats and its bytes.

        Args:
            payload: The payload; an empty one stays empty.
            **sender: The hooks' further arguments: ``client``, or ``server, client_id``.

        Raises:
            RunFailure: A transform failed, or returned undeclared names.
        """
        if not (payload and self.codings):
            return payload.floats, payload.to_bytes()
        forms = [form_of(payload)]
        for coding in self.codings:
            with error_context(f"encode_{self.direction} of {coding.name}"):
                payload = Payload(coding.encode(payload=payload, **sender))
                if not payload:
                    raise RunFailure("the encoded payload is empty")
                for name in payload:
                    if not coding.covers(name, forms[-1]):
                        suffix = name.rpartition(".")[2]
                        do = f"declare it in the transform: encodes = {{{suffix!r}: 'what it is'}}"
                        raise RunFailure(f"it made {name!r}, which it does not declare", do=do)
                forms.append(form_of(payload))
        return payload.floats, payload.to_bytes({KEY: write_forms(forms)})

    def forms(self, blob: bytes, wire: Form, limit: float = math.inf) -> list[Form]:
        """Return the forms of the payload and of the output of each transform.

        Args:
            blob: The received bytes; their own header has been checked.
            wire: The form of these bytes.
            limit: Largest decoded size in bytes.

        Raises:
            Fault: The forms are invalid, too large, or have undeclared names.
        """
        if not (self.codings and blob):
            return [wire]
        try:
            forms = read_forms(metadata_value(blob, KEY), len(self.codings), wire)
        except ValueError as error:
            raise Fault("", "encoding", f"what cannot be decoded ({error})") from None
        for form in forms[:-1]:
            size = sum(entry.size for entry in form.values())
            if size > limit:
                raise Fault("", "size", f"{size:,} bytes when decoded")
        for coding, form, became in zip(self.codings, forms, forms[1:], strict=False):
            for name in became:
                if not coding.covers(name, form):
                    raise Fault(name, "names", f"which {coding.name} does not declare")
        return forms

    def decode(self, wire: Payload, forms: Sequence[Form], **receiver: object) -> Payload:
        """Decode a payload on the CPU, where a wrong index is an error.

        Args:
            wire: The received payload, on the CPU.
            forms: Its `forms`.
            **receiver: The hooks' further arguments: ``client``, or ``server, client_id``.

        Raises:
            Fault: A transform can't decode the payload, or returns another form than declared.
        """
        bad = wire.nonfinite() if len(forms) > 1 else None
        if bad is not None:
            raise Fault(bad, "finite", "with NaN or infinity")
        for coding, form in reversed([*zip(self.codings, forms, strict=False)]):
            hook = f"decode_{self.direction} of {coding.name}"
            try:
                wire = Payload(coding.decode(payload=wire, form=empty_tensors(form), **receiver))
                restored = form_of(wire)
            except Exception as error:
                problem = f"what {hook} cannot read: {shown(error_text(error))}"
                raise Fault("", "encoding", problem) from error
            for name in (*form, *restored):
                if restored.get(name) != form.get(name):
                    raise Fault(name, "encoding", f"that {hook} restores in another form")
        return wire

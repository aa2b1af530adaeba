"""Encodings: what wrappers put on the wire in place of a payload, and the forms beside it.

A form holds names, types and shapes of what was encoded. A receiver knows from it what decoding
will make before anything is decoded, so it can be checked against the gate's rules.
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
    Entry,
    checked_entry,
    metadata_value,
    shown,
    shown_name,
    strict_json,
    tensor_header,
)

KEY = "forms"
"""The word under which they stand in the metadata of a payload's bytes."""


Form = Mapping[str, Entry]


_TORCH = {name: dtype for dtype, name in TYPES.items()}


def form_of(payload: Mapping[str, Tensor]) -> Form:
    """Return the form of tensors.

    Raises:
        RunFailure: One is of a type that can't be encoded.
    """
    for name, tensor in payload.items():
        if tensor.dtype not in TYPES:
            raise RunFailure(f"{name!r} is of type {tensor.dtype}, which no encoding can restore")
    return {name: Entry(TYPES[t.dtype], tuple(t.shape)) for name, t in payload.items()}


def empty_tensors(form: Form) -> Payload:
    """Return tensors of a form without content, on the device ``meta``.

    Raises:
        ValueError: One is of a type of which there are none.
    """
    wrong = next((name for name, entry in form.items() if entry.dtype not in _TORCH), None)
    if wrong is not None:
        raise ValueError(f"{shown_name(wrong)} is of a type that can't be restored")
    shapes = {name: (entry.shape, _TORCH[entry.dtype]) for name, entry in form.items()}
    return Payload(
        {name: torch.empty(shape, dtype=t, device="meta") for name, (shape, t) in shapes.items()}
    )


def write_forms(forms: Sequence[Form]) -> str:
    """Write all forms except the last as text: ``[{"prototypes":["F32",7,512]}]``.

    Null stands for a form that is the next one's too.
    """
    rows = [
        None if form == became else {name: [e.dtype, *e.shape] for name, e in form.items()}
        for form, became in pairwise(forms)
    ]
    return json.dumps(rows, separators=(",", ":"))


def declared_form(blob: bytes) -> Form:
    """Return the form of the payload in our own bytes, encoded or not."""
    wire = tensor_header(blob)
    text = metadata_value(blob, KEY) if blob else ""
    return read_forms(text, len(json.loads(text)), wire)[0] if text else wire


def read_forms(text: str, count: int, wire: Form) -> list[Form]:
    """Read what `write_forms` wrote, from an untrusted sender.

    Args:
        text: The text.
        count: How many forms it has to have.
        wire: The last one.

    Raises:
        ValueError: It has not so many forms, or one holds what no tensor is.
    """
    rows = strict_json(text.encode()) if text else []
    if not (isinstance(rows, list) and len(rows) == count):
        raise ValueError(f"it has not the {count} forms of what it encodes: {shown(rows)}")
    forms = [wire]
    for row in reversed(rows):
        forms.append(forms[-1] if row is None else _form(row))
    return forms[::-1]


def _form(row: object) -> Form:
    if not isinstance(row, dict) or not all(isinstance(v, list) and v for v in row.values()):
        raise ValueError(f"a form is none: {shown(row)}")
    found = {name: checked_entry(name, kind, shape) for name, (kind, *shape) in row.items()}
    return found


@dataclass(frozen=True)
class Coding:
    """The two sides of a wrapper in one direction.

    Attributes:
        name: The wrapper.
        encode: Its ``encode_…``, with the hook's arguments.
        decode: Its ``decode_…``.
        parts: What it declares to put on the wire beside the names that it is given.
        each: Whether it encodes for each client anew, and not once for all that get the same.
    """

    name: str
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    parts: Collection[str]
    each: bool

    def covers(self, name: str, form: Form) -> bool:
        """Return True if a name may be on the wire: from the form, declared, or both."""
        owner, _, part = name.rpartition(".")
        return name in form or name in self.parts or (owner in form and part in self.parts)


def coding_of(direction: str, name: str, plugin: Any, call: Callable[..., Any]) -> Coding | None:  # noqa: ANN401 - a plugin's class
    """Return the two sides of a wrapper, or None.

    Args:
        direction: ``upload`` or ``download``.
        name: The wrapper.
        plugin: Its class.
        call: Calls a hook of it by its name, with the hook's arguments.

    Raises:
        UsageError: It has one side alone.
    """
    sides = [f"{side}_{direction}" for side in ("encode", "decode")]
    have = [hook for hook in sides if hasattr(plugin, hook)]
    if not have:
        return None
    if have != sides:
        lacks = next(hook for hook in sides if hook not in have)
        do = f"write {lacks}: what one side encodes the other has to decode"
        raise UsageError(f"wrapper {name!r} has {have[0]} and no {lacks}", do=do)
    each = "client_id" in inspect.signature(getattr(plugin, sides[0])).parameters
    encode, decode = (partial(call, hook) for hook in sides)
    return Coding(name, encode, decode, getattr(plugin, "encodes", {}), each)


class Codec:
    """The encodings of one direction.

    Args:
        direction: ``upload`` or ``download``.
        codings: Those of the wrappers, in the order of ``--with``.

    Attributes:
        direction: The direction.
        codings: Those that there are.
        each: Whether two clients that get the same payload may get other bytes.
    """

    def __init__(self, direction: str, codings: Iterable[Coding | None] = ()) -> None:
        self.direction = direction
        self.codings = [coding for coding in codings if coding is not None]
        self.each = any(coding.each for coding in self.codings)

    def pack(self, payload: Payload, **sender: object) -> tuple[int, bytes]:
        """Encode a payload; return its number of floats and its bytes.

        Args:
            payload: The payload; an empty one is encoded by nobody.
            **sender: What hooks are told of the sender: ``client``, or ``server, client_id``.

        Raises:
            RunFailure: A wrapper failed, or made what it does not declare.
        """
        if not (payload and self.codings):
            return payload.floats, payload.to_bytes()
        forms = [form_of(payload)]
        for coding in self.codings:
            with error_context(f"encode_{self.direction} of {coding.name}"):
                payload = Payload(coding.encode(payload=payload, **sender))
                _check(payload, coding, forms[-1])
                forms.append(form_of(payload))
        return payload.floats, payload.to_bytes({KEY: write_forms(forms)})


def _check(made: Payload, coding: Coding, form: Form) -> None:
    """Check that a wrapper's output has the names that it declares."""
    if not made:
        raise RunFailure("it made an empty payload of one that is not")
    for name in made:
        if not coding.covers(name, form):
            part = name.rpartition(".")[2]
            do = f"declare it in the wrapper: encodes = {{{part!r}: 'what it is'}}"
            raise RunFailure(f"it made {name!r}, which it does not declare", do=do)


class Decoder:
    """Decodes payloads, and says what is wrong with them.

    Args:
        codec: The encodings.
        limit: Bytes of what is decoded, at most.
    """

    def __init__(self, codec: Codec, limit: float = math.inf) -> None:
        self._codec, self._limit = codec, limit

    def forms(self, blob: bytes, wire: Form) -> list[Form]:
        """Return the forms of the payload and of the output of each wrapper.

        Args:
            blob: What came; its own header has been found to be good.
            wire: Its own form.

        Raises:
            Fault: It has no such forms, or they are of too much, or of what nobody asked for.
        """
        if not (self._codec.codings and blob):
            return [wire]
        try:
            forms = read_forms(metadata_value(blob, KEY), len(self._codec.codings), wire)
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
        """Decode a payload on the CPU, where a wrong index is an error.

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
                wire = Payload(coding.decode(payload=wire, form=empty_tensors(form), **receiver))
                found = form_of(wire)
            except Exception as error:
                words = f"what {hook} can't read: {shown(error_text(error))}"
                raise Fault("", "encoding", words) from error
            for name in (*form, *found):
                if found.get(name) != form.get(name):
                    raise Fault(name, "encoding", f"of which {hook} makes another than it was")
        return wire

"""Forms: names, types and shapes of what was encoded, as they travel beside what it became.

A receiver knows from them what decoding will make before anything is decoded, so it can be held
against the rules and against a bound while it costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.files.header import (
    Entry,
    checked_entry,
    quoted,
    short,
    strict_json,
    tensor_header,
    words_beside,
)
from protofl.files.tensors import TYPES
from protofl.wire.payload import Payload

KEY = "forms"
"""The word under which they stand in the metadata of a payload's bytes."""

Form = Mapping[str, Entry]

_TORCH = {name: dtype for dtype, name in TYPES.items()}


def form_of(payload: Mapping[str, Tensor]) -> Form:
    """The form of tensors.

    Raises:
        RunFailure: One is of a type that can't be encoded.
    """
    for name, tensor in payload.items():
        if tensor.dtype not in TYPES:
            raise RunFailure(f"{name!r} is of type {tensor.dtype}, which no encoding can restore")
    return {name: Entry(TYPES[t.dtype], tuple(t.shape)) for name, t in payload.items()}


def hollow(form: Form) -> Payload:
    """Tensors of a form without content, on the device ``meta``.

    Raises:
        ValueError: One is of a type of which there are none.
    """
    wrong = next((name for name, entry in form.items() if entry.dtype not in _TORCH), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} is of a type that can't be restored")
    shapes = {name: (entry.shape, _TORCH[entry.dtype]) for name, entry in form.items()}
    return Payload(
        {name: torch.empty(shape, dtype=t, device="meta") for name, (shape, t) in shapes.items()}
    )


def write_forms(forms: Sequence[Form]) -> str:
    """Forms as text, but the last, which what crosses has: ``[{"prototypes":["F32",7,512]}]``.

    Null stands for a form that is the next one's too.
    """
    rows = [
        None if form == became else {name: [e.dtype, *e.shape] for name, e in form.items()}
        for form, became in pairwise(forms)
    ]
    return json.dumps(rows, separators=(",", ":"))


def claimed(blob: bytes) -> Form:
    """The form of the payload that bytes of our own stand for, encoded or not."""
    wire = tensor_header(blob)
    text = words_beside(blob, KEY) if blob else ""
    return read_forms(text, len(json.loads(text)), wire)[0] if text else wire


def read_forms(text: str, count: int, wire: Form) -> list[Form]:
    """What `write_forms` wrote, of a stranger.

    Args:
        text: The text.
        count: How many forms it has to have.
        wire: The last one.

    Raises:
        ValueError: It has not so many forms, or one holds what no tensor is.
    """
    rows = strict_json(text.encode()) if text else []
    if not (isinstance(rows, list) and len(rows) == count):
        raise ValueError(f"it has not the {count} forms of what it encodes: {short(rows)}")
    forms = [wire]
    for row in reversed(rows):
        forms.append(forms[-1] if row is None else _form(row))
    return forms[::-1]


def _form(row: object) -> Form:
    if not isinstance(row, dict) or not all(isinstance(v, list) and v for v in row.values()):
        raise ValueError(f"a form is none: {short(row)}")
    found = {name: checked_entry(name, kind, shape) for name, (kind, *shape) in row.items()}
    return found

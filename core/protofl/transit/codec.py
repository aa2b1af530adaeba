"""Encodings: what wrappers put on the wire in place of a payload, and what its receiver sees.

The payload, as hooks and the wrappers around them made it, goes through ``encode_…`` of each
wrapper in the order of ``--with``. What the last one makes crosses, with the form of what each was
given (`protofl.transit.forms`). The receiver's gate checks these, and decodes in reverse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from protofl.errors import RunFailure, UsageError, naming
from protofl.transit.forms import KEY, Form, form_of, write_forms
from protofl.wire.payload import Payload


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
        """Whether a name may be on the wire: one of the form's, a declared one, or both."""
        owner, _, part = name.rpartition(".")
        return name in form or name in self.parts or (owner in form and part in self.parts)


def coding_of(direction: str, name: str, plugin: Any, call: Callable[..., Any]) -> Coding | None:  # noqa: ANN401 - a plugin's class
    """The sides of a wrapper; None where it has none.

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
        """What crosses in place of a payload: its floats and its bytes.

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
            with naming(f"encode_{self.direction} of {coding.name}"):
                payload = Payload(coding.encode(payload=payload, **sender))
                _check(payload, coding, forms[-1])
                forms.append(form_of(payload))
        return payload.floats, payload.to_bytes({KEY: write_forms(forms)})


def _check(made: Payload, coding: Coding, form: Form) -> None:
    """Hold what a wrapper has made of a payload of a form against what it declares."""
    if not made:
        raise RunFailure("it made an empty payload of one that is not")
    for name in made:
        if not coding.covers(name, form):
            part = name.rpartition(".")[2]
            do = f"declare it in the wrapper: encodes = {{{part!r}: 'what it is'}}"
            raise RunFailure(f"it made {name!r}, which it does not declare", do=do)

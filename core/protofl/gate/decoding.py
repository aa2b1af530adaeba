"""The gate before what is encoded: its forms, held against a bound, and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protofl.errors import in_words
from protofl.files.header import short, words_beside
from protofl.gate.faults import Fault
from protofl.transit.codec import Codec
from protofl.transit.forms import KEY, Form, form_of, hollow, read_forms
from protofl.wire.payload import Payload


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

"""What ``receive_uploads`` makes of uploads that the gate let in: held against the rules again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from protofl.errors import RunFailure
from protofl.gate.contents import Contents
from protofl.gate.declared import Declared
from protofl.gate.decoding import Decoder
from protofl.gate.faults import RULES, Fault
from protofl.gate.returned import described, expect_returned
from protofl.transit.codec import Codec
from protofl.transit.forms import form_of
from protofl.views.run import RunInfo
from protofl.wire.payload import Payload

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

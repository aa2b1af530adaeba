"""A method whose payloads the tests provide, and a way to send one through the transforms."""

from __future__ import annotations

import torch

from protofl import Client, Payload, Server
from protofl.hooks.transport.encoding import form_of


class Scripted:
    """Declares uploads; the tests provide the tensors of each round."""

    uploads = {
        "prototypes": "p",
        "u/*": "u",
        "public_logits": "l",
        "public_index": "i",
        "counts": "n",
    }


def send(found, tensors, client=0, round=0, direction="upload"):
    """Return the encoded payload of a client's upload or download, and the decoded one."""
    record = found.client(client)
    record.round = found.server.round = round
    main = found.plan.composition.main
    sides = [
        {"client": Client(record, main)},
        {"server": Server(found.server, main), "client_id": client},
    ]
    sender, receiver = sides if direction == "upload" else sides[::-1]
    codec = getattr(found.plan.composition, direction)
    with torch.no_grad():
        _, blob = codec.pack(Payload(tensors), **sender)
    wire = Payload.from_bytes(blob)
    seen = codec.decode(wire, codec.forms(blob, form_of(wire)), **receiver)
    return wire, seen


def rows_of(*classes, d=40, seed=0):
    known = torch.tensor(classes)
    rows = torch.randn(len(classes), d, generator=torch.Generator().manual_seed(seed))
    return {"prototypes": rows, "classes": known, "counts": known + 1}

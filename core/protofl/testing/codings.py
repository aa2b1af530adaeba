"""Contract of transforms that encode and decode payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from protofl.federation.jobs.jobs import Load, Save
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.transport.encoding import Codec, form_of
from protofl.hooks.transport.rules import Fault
from protofl.hooks.views.client import Client
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skip


def odd_payloads() -> dict[str, Payload]:
    """Payloads of shapes and types that a method may send, by what is odd in them."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 40, generator=draw)
    classes = torch.tensor([0, 2, 3])
    return {
        "rows by class": Payload(prototypes=rows, classes=classes, counts=classes + 1),
        "other classes": Payload(prototypes=rows[:2], classes=torch.tensor([1, 2])),
        "zeros": Payload(prototypes=torch.zeros(3, 40), classes=classes),
        "equal numbers": Payload(prototypes=torch.ones(3, 40), classes=classes),
        "no rows": Payload(prototypes=rows[:0], classes=classes[:0]),
        "rows without columns": Payload(prototypes=rows[:, :0], classes=classes),
        "one number": Payload(drift=torch.tensor(0.5)),
        "one of each": Payload({"a/w": torch.randn(1, generator=draw), "a/b": torch.ones(1, 1)}),
        "no floats": Payload(samples=torch.tensor(7), mask=torch.tensor([True, False])),
        "float64": Payload(x=rows.double(), y=rows.half(), z=rows.bfloat16()),
        "kernels": Payload({"model/w": torch.randn(4, 3, 5, 5, generator=draw)}),
        "many numbers": Payload({"model/w": torch.randn(300, 300, generator=draw)}),
        "very large and very small": Payload(x=rows * 1e30, y=rows * 1e-30),
        "not contiguous": Payload({"model/w": rows.T}),
    }


DAMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "fewer rows": lambda t: t[:-1] if t.dim() else t.repeat(2),
    "more rows": lambda t: torch.cat([t, t]) if t.dim() else t.repeat(3),
    "one more axis": lambda t: t.unsqueeze(0),
    "int64": lambda t: t.long(),
    "float64": lambda t: t.double(),
    "its type's largest": lambda t: torch.full_like(t, _most(t)),
    "its type's smallest": lambda t: torch.full_like(t, -_most(t) if t.is_floating_point() else 0),
    "-1": lambda t: torch.full_like(t, -1) if t.dtype != torch.bool else ~t,
    "upside down": lambda t: t.flip(tuple(range(t.dim()))),
}
"""Ways in which a stranger may change a tensor on the wire."""


def _most(tensor: Tensor) -> float:
    if tensor.dtype == torch.bool:
        return 1
    floats = tensor.is_floating_point()
    return torch.finfo(tensor.dtype).max if floats else torch.iinfo(tensor.dtype).max


class CodingChecks(Contract):
    """The checks of what a transform encodes and decodes; without such hooks they are left out."""

    def two_sides(self) -> Iterator[tuple[toy.Toy, Codec, dict[str, object], dict[str, object]]]:
        """Yield for each encoded direction a federation, the codec, the sender and the receiver."""
        if not any(hasattr(self.cls, f"encode_{name}") for name in ("upload", "download")):
            skip("it encodes nothing")
        for direction in ("upload", "download"):
            federation = self.fed(self.carried()[0])
            composition: Composition = federation.plan.composition
            federation.rounds(1)
            client = {"client": Client(federation.client(1), "carrier")}
            server = {"server": Server(federation.server, "carrier"), "client_id": 1}
            codec = composition.upload if direction == "upload" else composition.download
            if codec.codings:
                sides = (client, server) if direction == "upload" else (server, client)
                yield federation, codec, *sides

    def fed(self, carried: str) -> toy.Toy:
        """A toy federation of a method that sends ``carried``."""
        raise NotImplementedError

    def carried(self, *among: str) -> list[str]:
        """Payloads that the transform does not refuse."""
        raise NotImplementedError

    def test_what_is_decoded(self) -> None:
        """Decoding gives the names, shapes and types that were encoded, of any payload."""
        for _, codec, sender, receiver in self.two_sides():
            for what, payload in odd_payloads().items():
                held = {name: tensor.clone() for name, tensor in payload.items()}
                try:
                    with torch.no_grad():
                        _, blob = codec.pack(payload, **sender)
                    seen = decoded(codec, blob, receiver)
                except Fault as fault:
                    raise AssertionError(f"{codec.direction} of {what}: {fault.problem}") from fault
                expect(form_of(seen) == form_of(payload), f"{what}: another form is decoded")
                bad = seen.nonfinite()
                expect(bad is None, f"{codec.direction} of {what}: {bad!r} has NaN or infinity")
                expect(toy.same(held, dict(payload)), f"{what}: encoding writes into the payload")

    def test_the_same_is_decoded_again(self) -> None:
        """Decoding the same bytes again gives the same, and writes nothing."""
        for federation, codec, sender, receiver in self.two_sides():
            with torch.no_grad():
                _, blob = codec.pack(odd_payloads()["rows by class"], **sender)
            before = toy.server_state(federation.server), toy.client_state(federation.client(1))
            first, again = (dict(decoded(codec, blob, receiver)) for _ in range(2))
            expect(toy.same(first, again), f"a second decode_{codec.direction} gives another")
            after = toy.server_state(federation.server), toy.client_state(federation.client(1))
            expect(toy.same(before, after), f"decode_{codec.direction} writes")

    def test_a_download_is_encoded_any_number_of_times(self) -> None:
        """Encoding a download writes nothing on the server."""
        for federation, codec, sender, _ in self.two_sides():
            if codec.direction == "upload":
                continue
            before, payload = toy.server_state(federation.server), odd_payloads()["rows by class"]
            first, again = (codec.pack(payload, **sender) for _ in range(2))
            expect(first == again, "a second encode_download is another")
            expect(toy.same(before, toy.server_state(federation.server)), "encode_download writes")

    def test_what_a_stranger_sends(self) -> None:
        """A damaged payload is refused, or decoded to its form at no more cost."""
        for _, codec, sender, receiver in self.two_sides():
            with torch.no_grad():
                _, blob = codec.pack(odd_payloads()["rows by class"], **sender)
            forms = codec.forms(blob, form_of(Payload.from_bytes(blob)))
            wire = Payload.from_bytes(blob)
            for name, tensor in wire.items():
                for damage in DAMAGES.values():
                    sent = Payload(wire, **{name: damage(tensor)})
                    try:
                        codec.decode(sent, [*forms[:-1], form_of(sent)], **receiver)
                    except Fault:
                        continue  # what passes has been held against its form

    def test_its_state_can_be_kept(self) -> None:
        """The state that the transform keeps at a client survives a file."""
        for federation, codec, sender, _ in self.two_sides():
            if codec.direction == "download":
                continue
            for payload in odd_payloads().values():
                with torch.no_grad():
                    codec.pack(payload, **sender)
            before, path = toy.own_state(federation.client(1)), str(self.folder / "client")
            for job in (Save(1, path=path), Load(1, path=path)):
                federation.pool.host.handle(job)
            expect(toy.same(before, toy.own_state(federation.client(1))), "its state is another")


def decoded(codec: Codec, blob: bytes, receiver: dict[str, object]) -> Payload:
    """Decode bytes as payload validation of the receiver does.

    Raises:
        Fault: They can't be decoded.
    """
    wire = Payload.from_bytes(blob)
    return codec.decode(wire, codec.forms(blob, form_of(wire)), **receiver)

"""What a client is beyond its seed: its weights, trained modules and state, packed and in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from protofl.errors import RunFailure
from protofl.files.tensors import pack_state, read_tensors, unpack_state, write_tensors
from protofl.views.records import ClientRecord
from protofl.wire.payload import Payload
from protofl.wire.weights import load_weights, weight_views


def pack_client(record: ClientRecord, *, received: bool) -> tuple[dict[str, Tensor], Any]:
    """A client's weights, trained modules and state; and its download where it is kept.

    Returns:
        Tensors, which are the client's own and not copies, and a header that JSON can hold.
    """
    tensors = weight_views(record.model, "model")
    for name, slot in record.slots():
        if slot.train:
            tensors |= weight_views(slot.module, f"module/{name}")
    if received:
        tensors |= {f"received/{key}": value for key, value in record.received.items()}
    return tensors, pack_state(record.state, tensors, f"state of client {record.id}")


def unpack_client(record: ClientRecord, tensors: dict[str, Tensor], header: Any) -> None:  # noqa: ANN401
    """Put copies of what `pack_client` packed into a client that has been set up."""
    load_weights(record.model, tensors, "model")
    for name, slot in record.slots():
        if slot.train:
            load_weights(slot.module, tensors, f"module/{name}")
    kept = Payload(tensors).under("received")
    made = [f"module/{name}" for name, slot in record.slots() if slot.train]
    check_modules(tensors, made, f"client {record.id}")
    record.received = Payload({k: v.to(record.device, copy=True) for k, v in kept.items()})
    record.state = unpack_state(header, tensors, record.device)


def save_client(record: ClientRecord, path: Path, *, received: bool) -> None:
    """Write a client as `pack_client` packs it."""
    write_tensors(path, *pack_client(record, received=received))


def load_client(record: ClientRecord, path: Path) -> None:
    """Put back what `save_client` wrote."""
    unpack_client(record, *read_tensors(path))


def check_modules(tensors: Mapping[str, Tensor], made: Iterable[str], owner: str) -> None:
    """Raise a `RunFailure` where a file holds a module that has not been made.

    Args:
        tensors: What the file holds.
        made: The modules that there are, ``module/METHOD/NAME``.
        owner: Whose they are, for the message.
    """
    starts = tuple(f"{module}/" for module in made)
    for key in tensors:
        if key.startswith("module/") and not key.startswith(starts):
            raise RunFailure(
                f"the checkpoint holds {key} of {owner}, which its set-up did not make",
                do="make modules in setup_client or setup_server, so that a run can be resumed",
            )

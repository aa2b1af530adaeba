"""The server's part of a checkpoint: its knowledge, modules and state in one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn

from protofl.files.tensors import pack_state, read_tensors, unpack_state, write_tensors
from protofl.hosts.checkpoint import check_modules
from protofl.views.records import ServerRecord
from protofl.wire.knowledge import Knowledge
from protofl.wire.payload import Payload
from protofl.wire.weights import load_weights, weight_views


def save_server(record: ServerRecord, path: Path) -> None:
    """Write the server's knowledge, modules and state."""
    tensors: dict[str, Tensor] = {f"knowledge/{k}": v for k, v in record.knowledge.items()}
    for name, module in _modules(record):
        tensors |= weight_views(module, name)
    write_tensors(path, tensors, pack_state(record.state, tensors, "state of the server"))


def load_server(record: ServerRecord, path: Path) -> None:
    """Put back what `save_server` wrote."""
    tensors, header = read_tensors(path)
    kept = Payload(tensors).under("knowledge")
    record.knowledge = Knowledge({k: v.to(record.device, copy=True) for k, v in kept.items()})
    for name, module in _modules(record):
        load_weights(module, tensors, name)
    check_modules(tensors, (name for name, _ in _modules(record)), "the server")
    record.state = unpack_state(header, tensors, record.device)


def _modules(record: ServerRecord) -> Iterator[tuple[str, nn.Module]]:
    """The modules of all methods by their names in the file, in a fixed order."""
    for owner, modules in sorted(record.modules.items()):
        for name, module in sorted(modules.items()):
            yield f"module/{owner}/{name}", module

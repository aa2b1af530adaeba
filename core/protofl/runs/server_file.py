"""The server's part of a checkpoint: its knowledge, modules and state in one file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from protofl.files.tensors import read_tensors, write_tensors
from protofl.hosts.checkpoint import pack, unpack
from protofl.views.records import ServerRecord
from protofl.wire.knowledge import Knowledge


def save_server(record: ServerRecord, path: Path) -> None:
    """Write the server's knowledge, modules and state."""
    packed = pack(_modules(record), "knowledge", record.knowledge, record.state, "the server")
    write_tensors(path, *packed)


def load_server(record: ServerRecord, path: Path) -> None:
    """Put back what `save_server` wrote."""
    packed, modules = read_tensors(path), _modules(record)
    knowledge, record.state = unpack(packed, modules, "knowledge", "the server", record.device)
    record.knowledge = Knowledge(knowledge)


def _modules(record: ServerRecord) -> dict[str, nn.Module]:
    """The modules of all methods by their names in the file."""
    return {
        f"module/{owner}/{name}": module
        for owner, modules in record.modules.items()
        for name, module in modules.items()
    }

"""Weights and state as safetensors with a JSON header; no pickle anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.parties import ClientRecord, ServerRecord
from protofl.payload import Knowledge, Payload, apart
from protofl.weights import load_weights, pack_weights


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write a file atomically: it is there whole or not at all."""
    plain = apart(tensors)
    temporary = path.with_name(path.name + ".part")
    safetensors.torch.save_file(plain, temporary, metadata={"state": json.dumps(header)})
    os.replace(temporary, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote.

    Raises:
        RunFailure: The file is missing or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            return {key: file.get_tensor(key).clone() for key in file.keys()}, header
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunFailure(f"the checkpoint file {path} can't be read: {error}") from error


def pack_state(state: Any, tensors: dict[str, Tensor], place: str) -> Any:  # noqa: ANN401
    """State as JSON; its tensors go into ``tensors`` under numbered names.

    Raises:
        RunFailure: The state holds something that is no tensor, number, string, dict or list.
    """
    if isinstance(state, Tensor):
        name = f"state/{len(tensors)}"
        tensors[name] = state
        return {"tensor": name}
    if isinstance(state, dict):
        for key in state:
            if not (key is None or type(key) in (bool, int, float, str)):
                raise RunFailure(
                    f"{place} has the key {key!r}, which a checkpoint can't hold",
                    do="keep numbers and strings as keys of state; modules go to add_module",
                )
        return {"dict": [[k, pack_state(v, tensors, f"{place}[{k!r}]")] for k, v in state.items()]}
    if isinstance(state, (list, tuple)):
        return {"list": [pack_state(v, tensors, place) for v in state]}
    if state is None or isinstance(state, (bool, int, float, str)):
        return {"value": state}
    raise RunFailure(
        f"{place} is a {type(state).__name__}, which a checkpoint can't hold",
        do="keep tensors, numbers, strings, dicts and lists in state; modules go to add_module",
    )


def unpack_state(packed: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:  # noqa: ANN401
    """What `pack_state` packed."""
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensors[value].to(device)
    if kind == "dict":
        return {k: unpack_state(v, tensors, device) for k, v in value}
    if kind == "list":
        return [unpack_state(v, tensors, device) for v in value]
    return value


def save_client(record: ClientRecord, path: Path, *, received: bool) -> None:
    """Write a client's weights, trained modules and state; and its download where it is kept."""
    tensors: dict[str, Tensor] = dict(pack_weights(record.model, "model"))
    for name, slot in record.slots():
        if slot.train:
            tensors |= pack_weights(slot.module, f"module/{name}")
    if received:
        tensors |= {f"received/{key}": value for key, value in record.received.items()}
    header = pack_state(record.state, tensors, f"state of client {record.id}")
    write_tensors(path, tensors, header)


def load_client(record: ClientRecord, path: Path) -> None:
    """Put back what `save_client` wrote."""
    tensors, header = read_tensors(path)
    load_weights(record.model, tensors, "model")
    for name, slot in record.slots():
        if slot.train:
            load_weights(slot.module, tensors, f"module/{name}")
    kept = Payload(tensors).under("received")
    made = [f"module/{name}" for name, slot in record.slots() if slot.train]
    _all_there(tensors, made, f"client {record.id}")
    record.received = Payload({key: value.to(record.device) for key, value in kept.items()})
    record.state = unpack_state(header, tensors, record.device)


def _all_there(tensors: dict[str, Tensor], modules: list[str], owner: str) -> None:
    for key in tensors:
        if key.startswith("module/") and not any(key.startswith(m + "/") for m in modules):
            raise RunFailure(
                f"the checkpoint holds {key} of {owner}, which its set-up did not make",
                do="make modules in setup_client or setup_server, so that a run can be resumed",
            )


def save_server(record: ServerRecord, path: Path) -> None:
    """Write the server's knowledge, modules and state."""
    tensors: dict[str, Tensor] = {f"knowledge/{k}": v for k, v in record.knowledge.items()}
    for owner, modules in sorted(record.modules.items()):
        for name, module in sorted(modules.items()):
            tensors |= pack_weights(module, f"module/{owner}/{name}")
    write_tensors(path, tensors, pack_state(record.state, tensors, "state of the server"))


def load_server(record: ServerRecord, path: Path) -> None:
    """Put back what `save_server` wrote."""
    tensors, header = read_tensors(path)
    kept = Payload(tensors).under("knowledge")
    record.knowledge = Knowledge({key: value.to(record.device) for key, value in kept.items()})
    for owner, modules in record.modules.items():
        for name, module in modules.items():
            load_weights(module, tensors, f"module/{owner}/{name}")
    made = [f"module/{owner}/{name}" for owner, own in record.modules.items() for name in own]
    _all_there(tensors, made, "the server")
    record.state = unpack_state(header, tensors, record.device)

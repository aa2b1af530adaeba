"""Weights and state as safetensors with a JSON header; no pickle anywhere."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.views.records import ClientRecord, ServerRecord
from protofl.wire.payload import Knowledge, Payload
from protofl.wire.weights import load_weights, weight_views

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any) -> None:  # noqa: ANN401
    """Write a safetensors file atomically: it is there whole or not at all.

    One tensor after the other, straight from its memory: the library's own writer first makes
    one more copy of all of them.

    Args:
        path: The file.
        tensors: What it holds. Views and tensors that share memory are written whole.
        header: Anything JSON can hold.

    Raises:
        RunFailure: A tensor's type is none that the format knows.
    """
    # Wide types first, so that each tensor lies where its type may be read from a mapped file.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    entries: dict[str, Any] = {"__metadata__": {"state": json.dumps(header)}}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise RunFailure(f"{name} is of type {tensor.dtype}, which a checkpoint can't hold")
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
    os.replace(temporary, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote; the tensors are views of the mapped file: copy what you keep.

    Raises:
        RunFailure: The file is missing or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            return {key: file.get_tensor(key) for key in file.keys()}, header
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
        return tensors[value].to(device, copy=True)
    if kind == "dict":
        return {k: unpack_state(v, tensors, device) for k, v in value}
    if kind == "list":
        return [unpack_state(v, tensors, device) for v in value]
    return value


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
    _all_there(tensors, made, f"client {record.id}")
    record.received = Payload({k: v.to(record.device, copy=True) for k, v in kept.items()})
    record.state = unpack_state(header, tensors, record.device)


def save_client(record: ClientRecord, path: Path, *, received: bool) -> None:
    """Write a client as `pack_client` packs it."""
    write_tensors(path, *pack_client(record, received=received))


def load_client(record: ClientRecord, path: Path) -> None:
    """Put back what `save_client` wrote."""
    unpack_client(record, *read_tensors(path))


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
            tensors |= weight_views(module, f"module/{owner}/{name}")
    write_tensors(path, tensors, pack_state(record.state, tensors, "state of the server"))


def load_server(record: ServerRecord, path: Path) -> None:
    """Put back what `save_server` wrote."""
    tensors, header = read_tensors(path)
    kept = Payload(tensors).under("knowledge")
    record.knowledge = Knowledge({k: v.to(record.device, copy=True) for k, v in kept.items()})
    for owner, modules in record.modules.items():
        for name, module in modules.items():
            load_weights(module, tensors, f"module/{owner}/{name}")
    made = [f"module/{owner}/{name}" for owner, own in record.modules.items() for name in own]
    _all_there(tensors, made, "the server")
    record.state = unpack_state(header, tensors, record.device)

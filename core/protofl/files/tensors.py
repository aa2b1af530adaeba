"""Files of tensors and state: safetensors with a JSON header; no pickle anywhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.files.replacing import replacing

Packed = tuple[dict[str, Tensor], Any]
"""Tensors, and a header that JSON can hold: what a file of tensors holds."""

TYPES = {
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
"""The types that the format and torch's arithmetic know, by the format's names."""


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
    about = {"state": json.dumps(header), "order": json.dumps([*tensors])}
    entries: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in TYPES:
            raise RunFailure(f"{name} is of type {tensor.dtype}, which a checkpoint can't hold")
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as part, open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> Packed:
    """What `write_tensors` wrote; the tensors are views of the mapped file: copy what you keep.

    Raises:
        RunFailure: The file is missing or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata()
            # In the order that they had, which sums over them and files of them follow.
            names = json.loads(about["order"]) if "order" in about else file.keys()
            return {name: file.get_tensor(name) for name in names}, json.loads(about["state"])
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunFailure(f"the checkpoint file {path} can't be read: {error}") from error


def tensor_bytes(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file, with words about them if there are any."""
    return safetensors.torch.save(apart(tensors), dict(about) if about else None)


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors in memory of their own, as safetensors wants them."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    # All copies from a device are under way before one of them is waited for.
    moved = {name: tensor.detach().to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    for name, tensor in moved.items():
        value = tensor.contiguous()
        if value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value
    return plain


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

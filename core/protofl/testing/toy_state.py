"""State that tests compare: that of clients and the server, and the bytes of payloads."""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

import torch
from torch import Tensor

from protofl.hooks.views.records import ClientRecord, ServerRecord


def client_state(record: ClientRecord) -> Any:  # noqa: ANN401 - a nested value
    """All that a client keeps, as one nested value that later changes don't reach."""
    modules = {name: slot.module.state_dict() for name, slot in record.slots()}
    kept = (record.model.state_dict(), modules, record.state, dict(record.received), record.round)
    scratch = {owner: values for owner, values in record.scratch.items() if values}
    return copy.deepcopy((*kept, scratch))


def own_state(record: ClientRecord) -> Any:  # noqa: ANN401 - a nested value
    """Return a client's state between jobs: all but its download and its frozen modules."""
    modules = {name: slot.module.state_dict() for name, slot in record.slots() if slot.train}
    return copy.deepcopy((record.model.state_dict(), modules, record.state))


def server_state(record: ServerRecord) -> Any:  # noqa: ANN401 - a nested value
    """All that the server keeps."""
    modules = {
        f"{owner}/{name}": module.state_dict()
        for owner, found in record.modules.items()
        for name, module in found.items()
    }
    state = {owner: values for owner, values in record.state.items() if values}
    return copy.deepcopy((dict(record.knowledge), modules, state, record.round))


def same(a: Any, b: Any) -> bool:  # noqa: ANN401 - nested values
    """Return True if two nested values are equal, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(_bits(a), _bits(b))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or (a != a and b != b)


def _bits(tensor: Tensor) -> Tensor:
    """A tensor's memory; there is no NumPy for some types."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def header(blob: bytes) -> dict[str, Any]:
    """The header of safetensors bytes, read by hand: {name: {dtype, shape, …}}."""
    if not blob:
        return {}
    (length,) = struct.unpack("<Q", blob[:8])
    found: dict[str, Any] = json.loads(blob[8 : 8 + length])
    found.pop("__metadata__", None)
    return found


def count_floats(blob: bytes) -> int:
    """Elements of floating-point tensors that are not buffers, counted in the header."""
    total = 0
    for name, entry in header(blob).items():
        if entry["dtype"] in ("F64", "F32", "F16", "BF16") and "/buffer/" not in name:
            elements = 1
            for size in entry["shape"]:
                elements *= size
            total += elements
    return total

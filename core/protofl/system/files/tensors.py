"""Files of tensors and state: safetensors with a checked JSON header, without pickle."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from protofl.errors import RunFailure
from protofl.system.files.atomic import REPLACES_OPEN_FILES, atomic_replacement
from protofl.system.torch_state import standard_torch
from protofl.system.transfers import to_host

SIZES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
"""{type: bytes of an element}."""

LONGEST = 16 << 20
"""Largest header in bytes, for some hundred thousand tensors."""

LARGEST = 1 << 48
"""Largest tensor in bytes, with empty dimensions counted as one: torch overflows at 2^63."""


@dataclass(frozen=True)
class TensorEntry:
    """Type and shape of a tensor, as read from a header."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * SIZES[self.dtype]


def tensor_header(data: bytes) -> dict[str, TensorEntry]:
    """Return the checked header of safetensors bytes; empty bytes have an empty header.

    Raises:
        ValueError: The bytes are damaged, or too short for the tensors of the header.
    """
    return {name: entry for name, (entry, _) in tensor_places(data).items()}


def tensor_places(data: bytes) -> dict[str, tuple[TensorEntry, tuple[int, int]]]:
    """Return the checked header of safetensors bytes, with where each tensor begins and ends.

    Raises:
        ValueError: The bytes are damaged, or too short for the tensors of the header.
    """
    if not data:
        return {}
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes are too few for a header")
    (length,) = struct.unpack_from("<Q", data)
    if length > min(len(data) - 8, LONGEST):
        raise ValueError(f"the header claims {length} of {len(data)} bytes")
    values = strict_json(data[8 : 8 + length])
    if not isinstance(values, dict):
        raise ValueError("the header is not a mapping")
    about = values.pop("__metadata__", {})
    if not (isinstance(about, dict) and all(isinstance(v, str) for v in about.values())):
        raise ValueError("the header's metadata are not strings")
    read = {name: _entry(name, value) for name, value in values.items()}
    start = 8 + length
    places = sorted(place for _, place in read.values())
    edges = [(0, 0), *places, (len(data) - start,) * 2]
    if any(before[1] != after[0] for before, after in pairwise(edges)):
        raise ValueError("tensors overlap or leave gaps")
    return {name: (entry, (start + a, start + b)) for name, (entry, (a, b)) in read.items()}


def metadata_value(data: bytes, key: str) -> str:
    """Return a metadata value of bytes that `tensor_header` has checked."""
    (length,) = struct.unpack_from("<Q", data)
    about: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return about.get(key, "")


def strict_json(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has a name twice.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the header is not JSON: {shown(error)}") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _entry(name: str, value: Any) -> tuple[TensorEntry, tuple[int, int]]:  # noqa: ANN401 - JSON
    """Return a tensor's entry, and the start and end of its bytes."""
    label = shown_name(name)
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{label} has no dtype, shape and data_offsets")
    entry, place = checked_entry(name, value["dtype"], value["shape"]), value["data_offsets"]
    if not (_counts(place) and len(place) == 2):
        raise ValueError(f"{label} has invalid data_offsets")
    start, end = place
    if end - start != entry.size:
        raise ValueError(f"{label} has {end - start} bytes for the shape {shown(value['shape'])}")
    return entry, (start, end)


def checked_entry(name: str, dtype: Any, shape: Any) -> TensorEntry:  # noqa: ANN401 - JSON
    """Return the entry of a tensor, after checking its type and shape.

    Raises:
        ValueError: The type or shape is invalid, or the tensor too large.
    """
    label = shown_name(name)
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"{label} has an unknown type: {shown(dtype)}")
    if not _counts(shape):
        raise ValueError(f"{label} has an invalid shape")
    if math.prod(max(size, 1) for size in shape) * SIZES[dtype] > LARGEST:
        raise ValueError(f"{label} claims the shape {shown(shape)}")
    return TensorEntry(dtype, tuple(shape))


def _counts(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def shown_name(name: str) -> str:
    """Return an untrusted name for display: quoted, escaped and shortened."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def shown(value: object) -> str:
    """Return an untrusted value for display: escaped and shortened."""
    text = repr(str(value))[1:-1]
    return text if len(text) <= 80 else text[:77] + "..."


Packed = tuple[dict[str, Tensor], Any]
"""The content of a file of tensors: tensors, and a JSON header."""

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
"""{type of torch: its name in the format}, for types with arithmetic."""

WIRE_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""{type of torch: its name in the format}, for all types that a payload can hold, in the order in
which the library's writer puts them: no tensor begins at an address that its type does not allow.
"""

_PLACES = {dtype: place for place, dtype in enumerate(WIRE_TYPES)}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any) -> None:  # noqa: ANN401
    """Write a safetensors file atomically.

    The library's own writer would copy all tensors first; this one writes each from its memory.

    Args:
        path: The file.
        tensors: The tensors, views among them.
        header: Any JSON value.

    Raises:
        RunFailure: The format lacks a tensor's type.
    """
    # Wide types first, so that the place of each tensor in a mapped file is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    about = {"state": json.dumps(header), "order": json.dumps([*tensors])}
    entries: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in TYPES:
            raise RunFailure(f"{name} has the type {tensor.dtype}, which a checkpoint cannot hold")
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with atomic_replacement(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


@standard_torch()  # an early safetensors reads onto torch's default device
def opened_tensors(file: Any, names: Sequence[str]) -> dict[str, Tensor]:  # noqa: ANN401
    """Read tensors of a file of `safetensors.safe_open`: views of the mapped file.

    They are copies where a mapped file can't be replaced.
    """
    tensors = {name: file.get_tensor(name) for name in names}
    return tensors if REPLACES_OPEN_FILES else {n: t.clone() for n, t in tensors.items()}


def read_tensors(path: Path) -> Packed:
    """Read a file of `write_tensors` (see `opened_tensors`).

    Raises:
        RunFailure: The file is missing or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata()
            # The original order, because sums over tensors depend on it.
            return opened_tensors(file, json.loads(about["order"])), json.loads(about["state"])
    except (
        OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError
    ) as error:  # fmt: skip
        raise RunFailure(f"the checkpoint file {path} cannot be read: {error}") from error


def tensor_bytes(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as safetensors bytes, with optional metadata.

    The bytes are those of the library's own writer, which copies tensors of a device one by one,
    and all tensors twice. Here those of a device are copied in one piece, and each once.

    Raises:
        RunFailure: The format lacks a tensor's type.
    """
    entries: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    for name, tensor in tensors.items():
        if tensor.dtype not in WIRE_TYPES:
            raise RunFailure(f"{name} has the type {tensor.dtype}, which a payload cannot hold")
    # Wide types first; names in the order of their UTF-8 bytes, which is that of code points.
    ordered = sorted(to_host(tensors).items(), key=lambda item: (_PLACES[item[1].dtype], item[0]))
    parts, end = list[memoryview](), 0
    for name, tensor in ordered:
        part = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        start, end = end, end + part.nbytes
        entries[name] = {
            "dtype": WIRE_TYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [start, end],
        }
        parts.append(part)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def pack_state(state: Any, tensors: dict[str, Tensor], place: str) -> Any:  # noqa: ANN401
    """Pack state as JSON; its tensors are added to ``tensors`` under numbered names.

    Raises:
        RunFailure: The state holds another type than tensors, numbers, strings, dicts and lists.
    """
    if isinstance(state, Tensor):
        name = f"state/{len(tensors)}"
        tensors[name] = state
        return {"tensor": name}
    if isinstance(state, dict):
        for key in state:
            if not (key is None or type(key) in (bool, int, float, str)):
                raise RunFailure(
                    f"{place} has the key {key!r}, which a checkpoint cannot hold",
                    do="keep numbers and strings as keys of state; modules go to add_module",
                )
        return {"dict": [[k, pack_state(v, tensors, f"{place}[{k!r}]")] for k, v in state.items()]}
    if isinstance(state, (list, tuple)):
        return {"list": [pack_state(v, tensors, place) for v in state]}
    if state is None or isinstance(state, (bool, int, float, str)):
        return {"value": state}
    raise RunFailure(
        f"{place} is a {type(state).__name__}, which a checkpoint cannot hold",
        do="keep tensors, numbers, strings, dicts and lists in state; modules go to add_module",
    )


def unpack_state(packed: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:  # noqa: ANN401
    """Restore a state that `pack_state` packed."""
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensors[value].to(device, copy=True)
    if kind == "dict":
        return {k: unpack_state(v, tensors, device) for k, v in value}
    if kind == "list":
        return [unpack_state(v, tensors, device) for v in value]
    return value

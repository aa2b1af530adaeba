"""The header of safetensors bytes from a stranger: read and checked before any tensor is made."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SIZES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of an element of each type."""

LONGEST = 16 << 20
"""Bytes of a header, at most: some hundred thousand tensors."""

LARGEST = 1 << 48
"""Bytes of a tensor, at most, where its empty dimensions count as one: torch overflows at 2^63."""


@dataclass(frozen=True)
class Entry:
    """A tensor of which only the header has been read."""

    dtype: str
    shape: tuple[int, ...]


def tensor_header(data: bytes) -> dict[str, Entry]:
    """What safetensors bytes say that they hold; no bytes hold nothing.

    Raises:
        ValueError: They are damaged, or claim what they can't hold; the words say how.
    """
    if not data:
        return {}
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes are no header")
    (length,) = struct.unpack_from("<Q", data)
    if length > min(len(data) - 8, LONGEST):
        raise ValueError(f"the header claims {length} of {len(data)} bytes")
    try:
        # A name that stands twice may be read in two ways: it is refused.
        values = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the header is no JSON: {_short(error)}") from None
    if not isinstance(values, dict):
        raise ValueError("the header is no mapping")
    about = values.pop("__metadata__", {})
    if not (isinstance(about, dict) and all(isinstance(v, str) for v in about.values())):
        raise ValueError("the header's metadata are no words")
    read = {name: _entry(name, value) for name, value in values.items()}
    places = sorted(place for _, place in read.values())
    edges = [(0, 0), *places, (len(data) - 8 - length,) * 2]
    if any(before[1] != after[0] for before, after in pairwise(edges)):
        raise ValueError("its tensors do not fill its bytes one behind the other")
    return {name: entry for name, (entry, _) in read.items()}


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _entry(name: str, value: Any) -> tuple[Entry, tuple[int, int]]:  # noqa: ANN401 - JSON
    """A tensor, and where its bytes begin and end."""
    words = quoted(name)
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{words} has no dtype, shape and data_offsets")
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"{words} is of a type that is not known: {_short(dtype)}")
    if not (_counts(shape) and _counts(place) and len(place) == 2):
        raise ValueError(f"{words} has a shape or place that is none")
    if math.prod(max(size, 1) for size in shape) * SIZES[dtype] > LARGEST:
        raise ValueError(f"{words} claims the shape {_short(shape)}")
    start, end = place
    if end - start != math.prod(shape) * SIZES[dtype]:
        raise ValueError(f"{words} has {end - start} bytes for the shape {_short(shape)}")
    return Entry(dtype, tuple(shape)), (start, end)


def _counts(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def quoted(name: str) -> str:
    """A stranger's name as it can be shown: escaped, and not too long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _short(value: object) -> str:
    text = repr(str(value))[1:-1]
    return text if len(text) <= 80 else text[:77] + "..."

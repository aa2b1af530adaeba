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

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * SIZES[self.dtype]


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
    values = strict_json(data[8 : 8 + length])
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


def words_beside(data: bytes, key: str) -> str:
    """What stands under a key of the metadata of bytes whose header `tensor_header` has passed."""
    (length,) = struct.unpack_from("<Q", data)
    about: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return about.get(key, "")


def strict_json(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """JSON of a stranger.

    Raises:
        ValueError: It is none, nested too deeply, or a name stands twice and may be read in two
            ways.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the header is no JSON: {short(error)}") from None


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
    entry, place = checked_entry(name, value["dtype"], value["shape"]), value["data_offsets"]
    if not (_counts(place) and len(place) == 2):
        raise ValueError(f"{words} has a place that is none")
    start, end = place
    if end - start != entry.size:
        raise ValueError(f"{words} has {end - start} bytes for the shape {short(value['shape'])}")
    return entry, (start, end)


def checked_entry(name: str, dtype: Any, shape: Any) -> Entry:  # noqa: ANN401 - JSON
    """A tensor of a type and shape that a stranger has written.

    Raises:
        ValueError: They are none, or too large.
    """
    words = quoted(name)
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"{words} is of a type that is not known: {short(dtype)}")
    if not _counts(shape):
        raise ValueError(f"{words} has a shape that is none")
    if math.prod(max(size, 1) for size in shape) * SIZES[dtype] > LARGEST:
        raise ValueError(f"{words} claims the shape {short(shape)}")
    return Entry(dtype, tuple(shape))


def _counts(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def quoted(name: str) -> str:
    """A stranger's name as it can be shown: escaped, and not too long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def short(value: object) -> str:
    """A stranger's value as it can be shown: escaped, and not too long."""
    text = repr(str(value))[1:-1]
    return text if len(text) <= 80 else text[:77] + "..."

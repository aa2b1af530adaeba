"""Messages of a deployed run on a stream: a text, and byte strings one after the other.

A message is the length of a JSON header (8 bytes, little-endian), the header, and the byte strings.
They are written one by one, so that they never lie joined in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import BinaryIO

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, text: str, blobs: Sequence[bytes]) -> None:
    """Write a message."""
    header = json.dumps({"text": text, "lengths": [len(blob) for blob in blobs]}).encode()
    stream.write(_LENGTH.pack(len(header)) + header)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[str, list[bytes]]:
    """Read a message.

    Raises:
        EOFError: The other side closed the stream.
    """
    (size,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    header = json.loads(_read(stream, size))
    return str(header["text"]), [_read(stream, length) for length in header["lengths"]]


def _read(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the stream was closed")
    return data

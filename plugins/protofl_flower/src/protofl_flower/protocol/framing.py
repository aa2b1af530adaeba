"""Messages of a deployed run on a stream: a text, and byte strings one after the other.

The format is that of `protofl_plugins.backends.wire`, whose blob is all byte strings joined. They
are written one by one, so that the joined blob never lies in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from protofl_plugins.backends import wire


def send(stream: BinaryIO, text: str, blobs: Sequence[bytes]) -> None:
    """Write a message."""
    lengths = [len(blob) for blob in blobs]
    stream.write(wire.opening({"text": text, "lengths": lengths}, sum(lengths)))
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[str, list[bytes]]:
    """Read a message.

    Raises:
        EOFError: The other side closed the stream.
    """
    header, _ = wire.receive_opening(stream)
    return str(header["text"]), [wire.read_exactly(stream, size) for size in header["lengths"]]

"""Messages between a run and its hosts in other processes: a JSON header and one blob of bytes.

On a stream a message is two lengths (8 bytes each, little-endian), the header, the blob. Nothing is
pickled.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

import protofl as pf

_LENGTHS = struct.Struct("<QQ")


def send(stream: BinaryIO, header: dict[str, Any], blob: bytes = b"") -> None:
    """Write a message."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(blob)) + text)
    stream.write(blob)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Read a message.

    Raises:
        EOFError: The other side closed the stream.
    """
    text_length, blob_length = _LENGTHS.unpack(read_exactly(stream, _LENGTHS.size))
    header: dict[str, Any] = json.loads(read_exactly(stream, text_length))
    return header, read_exactly(stream, blob_length)


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """Read this number of bytes.

    Raises:
        EOFError: The other side closed the stream.
    """
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the stream was closed")
    return data


def answer(
    host: pf.backends.Host, header: dict[str, Any], blob: bytes
) -> tuple[dict[str, Any], bytes]:
    """Execute a job on a host; return the header and the blob of its reply."""
    reply = host.handle(pf.backends.Job.from_header(header, blob))
    return reply.header(), reply.blob


def failure(error: Exception) -> dict[str, Any]:
    """The header of a reply that is an error."""
    return {"failure": pf.ProtoflError.to_values(error)}


def reply_of(header: dict[str, Any], blob: bytes) -> pf.backends.Reply:
    """Return the reply of a header and a blob.

    Raises:
        ProtoflError: It was an error.
    """
    if "failure" in header:
        raise pf.ProtoflError.from_values(header["failure"])
    return pf.backends.Reply.from_header(header, blob)

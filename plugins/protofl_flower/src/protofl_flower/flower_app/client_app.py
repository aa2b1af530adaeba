"""The ClientApp: a pipe between Flower and the resident host of this node. It imports no torch."""

from __future__ import annotations

import socket
from typing import BinaryIO, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from protofl_flower.protocol import framing

app = ClientApp()


def work(message: Message, context: Context) -> Message:
    """Pass a message to the host, and its response back."""
    record, arrays = message.content["protofl"], message.content["blobs"]
    blobs = [arrays.pop(str(number)).data for number in range(len(arrays))]
    text, reply_blobs = _ask(str(context.node_config["socket"]), str(record["text"]), blobs)
    content = RecordDict({"protofl": ConfigRecord({"text": text}), "blobs": _arrays(reply_blobs)})
    return Message(content, reply_to=message)


def _arrays(blobs: list[bytes]) -> ArrayRecord:
    return ArrayRecord(
        {
            str(number): Array("uint8", (len(blob),), "safetensors", blob)
            for number, blob in enumerate(blobs)
        }
    )


def _ask(path: str, text: str, blobs: list[bytes]) -> tuple[str, list[bytes]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(path)
        except OSError as error:
            raise RuntimeError("the host of this node does not run: protofl node start") from error
        with line.makefile("rwb") as made:
            stream = cast(BinaryIO, made)
            framing.send(stream, text, blobs)
            blobs.clear()  # of the message too: not in memory beside what comes back
            return framing.receive(stream)


app.train()(work)

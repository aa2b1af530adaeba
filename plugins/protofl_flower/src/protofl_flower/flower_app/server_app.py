"""The ServerApp: it starts the process of a run, and passes messages between it and Flower's grid.

The run has a process of its own, because Flower's threads draw from Python's generator of random
numbers, which the dry run of a run watches.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from protofl_flower.protocol.transport import (
    MALFORMED,
    Delivery,
    end_with_parent,
    pass_on,
    report_killed,
)

app = ServerApp()


class GridTransport:
    """Messages to nodes, as `protofl_flower.protocol.transport.Transport` describes them."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def online(self) -> dict[str, int]:
        """Return {public key: number at Flower} of the nodes that are online."""
        return {node.public_key.decode().strip(): node.node_id for node in self._grid.get_nodes()}

    def send(
        self, node_id: int, text: str, blobs: Sequence[bytes], seconds: float, group: str
    ) -> str:
        """Send a message to a node; return its ticket, empty if Flower refused it."""
        arrays = {
            str(number): Array("uint8", (len(blob),), "safetensors", blob)
            for number, blob in enumerate(blobs)
        }
        content = RecordDict(
            {"protofl": ConfigRecord({"text": text}), "blobs": ArrayRecord(arrays)}
        )
        message = Message(content, node_id, "train", ttl=seconds or None, group_id=group)
        return next(iter(self._grid.push_messages([message])), None) or ""

    def receive(self, tickets: Sequence[str]) -> list[Delivery]:
        """Return what has come for some of these tickets."""
        return [delivery for ticket in tickets for delivery in self._pulled(ticket)]

    def _pulled(self, ticket: str) -> list[Delivery]:
        """Return what has come for a ticket; a message that can't be read is `MALFORMED`.

        Each ticket is asked for by itself: Flower confirms all messages of a call before it reads
        them, so one that can't be read would take the others with it.
        """
        try:
            return [_delivery(ticket, message) for message in self._grid.pull_messages([ticket])]
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            problem = f"a message that cannot be read: {type(error).__name__}: {error}"
            return [Delivery(ticket, code=MALFORMED, reason=problem)]


def _delivery(ticket: str, message: Message) -> Delivery:
    if message.has_error():
        return Delivery(
            ticket, code=message.error.code or MALFORMED, reason=message.error.reason or ""
        )
    content = message.content
    for name, kind in (("protofl", ConfigRecord), ("blobs", ArrayRecord)):
        if not isinstance(content.get(name), kind):
            reason = f"a message without {name}"
            return Delivery(ticket, code=MALFORMED, reason=reason)
    text, arrays = content["protofl"].get("text"), content["blobs"]
    names = [str(number) for number in range(len(arrays))]
    if not isinstance(text, str) or any(name not in arrays for name in names):
        return Delivery(ticket, code=MALFORMED, reason="a message without a text, or blobs 0, 1, …")
    return Delivery(ticket, text, [bytes(arrays[name].data) for name in names])


def main(grid: Grid, context: Context) -> None:
    """Do the run that the file in the run's configuration describes."""
    run = [sys.executable, "-P", "-m", "protofl_flower.run_process"]
    command = [*run, str(context.run_config["request"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end_with_parent(process)
        asked, answered = cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)
        pass_on(GridTransport(grid), asked, answered)
    report_killed(str(context.run_config["request"]), process.returncode)


app.main()(main)

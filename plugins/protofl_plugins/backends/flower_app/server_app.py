"""The ServerApp: it starts the process of a run, and passes messages between it and Flower's grid.

The run has a process of its own, because Flower's threads draw from Python's generator of random
numbers, which the dry step of a run watches.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from protofl_plugins.backends.posts import Delivery, end_with_parent, pass_on

app = ServerApp()


class Post:
    """Messages to nodes, as `protofl_plugins.backends.posts.Post` describes them."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> dict[str, int]:
        """Return {public key: node} of the nodes that are online."""
        return {node.public_key.decode().strip(): node.node_id for node in self._grid.get_nodes()}

    def send(self, node: int, text: str, blobs: Sequence[bytes], seconds: float, group: str) -> str:
        """Send an envelope to a node; return its ticket, empty if Flower refused it."""
        arrays = {
            str(number): Array("uint8", (len(blob),), "safetensors", blob)
            for number, blob in enumerate(blobs)
        }
        content = RecordDict(
            {"protofl": ConfigRecord({"text": text}), "blobs": ArrayRecord(arrays)}
        )
        message = Message(content, node, "train", ttl=seconds or None, group_id=group)
        return next(iter(self._grid.push_messages([message])), None) or ""

    def receive(self, tickets: Sequence[str]) -> list[Delivery]:
        """Return what has come for some of these tickets."""
        found = []
        for message in self._grid.pull_messages(tickets):
            ticket = message.metadata.reply_to_message_id
            if message.has_error():
                reason = message.error.reason or ""
                found.append(Delivery(ticket, code=message.error.code, reason=reason))
                continue
            arrays = message.content["blobs"]
            blobs = [arrays[str(number)].data for number in range(len(arrays))]
            found.append(Delivery(ticket, str(message.content["protofl"]["text"]), blobs))
        return found


def main(grid: Grid, context: Context) -> None:
    """Do the run that the file in the run's configuration describes."""
    run = [sys.executable, "-P", "-m", "protofl_plugins.backends.server_process"]
    command = [*run, str(context.run_config["request"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end_with_parent(process)
        asked, answered = cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)
        pass_on(Post(grid), asked, answered)


app.main()(main)

"""The ServerApp: it runs protofl with the backend ``flower``, on Flower's grid."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from protofl_plugins.backends.flower import serve
from protofl_plugins.backends.posts import Delivery

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


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run that the file in the run's configuration describes."""
    serve(Post(grid), str(context.run_config["request"]))

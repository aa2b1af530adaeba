"""What a deployed run knows of Flower: messages to nodes, and the sites of its federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Delivery:
    """What came back for a message: an envelope, or Flower's error.

    Attributes:
        ticket: The message's ticket.
        text: The envelope's text.
        blobs: The envelope's byte strings.
        code: The code of Flower's error; 0 for none.
        reason: The text of Flower's error.
    """

    ticket: str
    text: str = ""
    blobs: Sequence[bytes] = ()
    code: int = 0
    reason: str = ""


class Post(Protocol):
    """Messages between a run and its nodes."""

    def nodes(self) -> Mapping[str, int]:
        """Return {public key: node} of the nodes that are online."""
        ...

    def send(self, node: int, text: str, blobs: Sequence[bytes], seconds: float, group: str) -> str:
        """Send an envelope to a node; return its ticket, empty if it was refused.

        Args:
            node: The node.
            text: The envelope's text.
            blobs: The envelope's byte strings.
            seconds: The time after which nobody waits for the response; 0 for Flower's own.
            group: The group of the message, for Flower's record.
        """
        ...

    def receive(self, tickets: Sequence[str]) -> Sequence[Delivery]:
        """Return what has come for some of these tickets, without waiting."""
        ...


@dataclass(frozen=True)
class Site:
    """A site of a federation.

    Attributes:
        name: Its name.
        key: The public key of its node, as OpenSSH writes it, without a comment.
        clients: The clients on its node.
    """

    name: str
    key: str
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Deployed:
    """Where a deployed run takes place.

    Attributes:
        post: The way to the nodes.
        sites: The sites.
        run: The name of the run on the nodes' disks, 16 hexadecimal digits.
    """

    post: Post
    sites: Sequence[Site]
    run: str

"""The interface of a deployed run to Flower: the nodes of a federation, and messages to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import protofl as pf
from protofl_flower.protocol import framing

MALFORMED = -1
"""The code of an answer that is not a message; codes of Flower are not negative."""


@dataclass(frozen=True)
class Delivery:
    """The answer to a message: a message, or Flower's error.

    Attributes:
        ticket: The message's ticket.
        text: The message's text.
        blobs: The message's byte strings.
        code: The code of Flower's error, or `MALFORMED`; 0 for none.
        reason: The text of the error.
    """

    ticket: str
    text: str = ""
    blobs: Sequence[bytes] = ()
    code: int = 0
    reason: str = ""

    @property
    def words(self) -> str:
        """The error in one line."""
        code = f" (Flower's error {self.code})" if self.code != MALFORMED else ""
        return f"{printed(self.reason)}{code}"


def printed(text: object) -> str:
    """Return a foreign text as one short printable line."""
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in line[:300])


class Transport(Protocol):
    """Messages between a run and its nodes."""

    def online(self) -> Mapping[str, int]:
        """Return {public key: number at Flower} of the nodes that are online."""
        ...

    def send(
        self, node_id: int, text: str, blobs: Sequence[bytes], seconds: float, group: str
    ) -> str:
        """Send a message to a node; return its ticket, empty if it was refused.

        Args:
            node_id: The node's number at Flower.
            text: The message's text.
            blobs: The message's byte strings.
            seconds: The time after which the response is not awaited; 0 for Flower's own.
            group: The group of the message, for Flower's record.
        """
        ...

    def receive(self, tickets: Sequence[str]) -> Sequence[Delivery]:
        """Return what has come for some of these tickets, without waiting."""
        ...


@dataclass(frozen=True)
class RemoteNode:
    """A node of a federation, as the server knows it.

    Attributes:
        name: Its name.
        key: Its public key as PEM, as Flower lists it.
        clients: Its clients.
    """

    name: str
    key: str
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Deployment:
    """The place of a deployed run.

    Attributes:
        transport: The way to the nodes.
        nodes: The nodes.
        run: The name of the run on the nodes' disks, 16 hexadecimal digits.
        missing: Names of the nodes for which the start of the run no longer waits.
    """

    transport: Transport
    nodes: Sequence[RemoteNode]
    run: str
    missing: set[str] = field(default_factory=set)


def end_with_parent(process: subprocess.Popen[bytes]) -> None:
    """End a process and this one when the parent of this one ends; a thread watches.

    A ServerApp whose SuperLink is gone would ask for it for ever, and keep the run folder locked.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        process.terminate()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write_end(path: str, values: dict[str, Any]) -> None:
    """Write the file that a run writes at its end."""
    temporary = Path(path + ".part")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    temporary.replace(path)


def report_killed(request: str, code: int) -> None:
    """Write the end of a run whose process ended without one, as after a signal.

    Args:
        request: The run's request, see `flower.serve`.
        code: The exit code of the process; minus the number of the signal that ended it.
    """
    end = str(json.loads(Path(request).read_text(encoding="utf-8"))["end"])
    if Path(end).exists():
        return
    how = f"ended with exit code {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
    error = pf.RunFailure(
        f"the process of the run on the server {how}",
        do="finished rounds are saved: continue with --resume",
    )
    write_end(end, {"failure": pf.ProtoflError.to_values(error)})


def pass_on(transport: Transport, asked: BinaryIO, answered: BinaryIO) -> None:
    """Make the calls that the process of a run asks for, until it closes its side."""
    while True:
        try:
            text, blobs = framing.receive(asked)
        except (EOFError, OSError):
            return
        response, parts = _called(transport, json.loads(text), blobs)
        framing.send(answered, json.dumps(response), parts)


def _called(
    transport: Transport, asked: dict[str, Any], blobs: Sequence[bytes]
) -> tuple[dict[str, Any], list[bytes]]:
    """Make a call; return what it found as values, and byte strings."""
    call, values, parts = asked.pop("call"), [], list[bytes]()
    try:
        if call == "online":
            return {"online": dict(transport.online())}, []
        if call == "send":
            return {"ticket": transport.send(blobs=blobs, **asked)}, []
        for delivery in transport.receive(asked["tickets"]):
            values.append(
                [
                    delivery.ticket,
                    delivery.text,
                    len(delivery.blobs),
                    delivery.code,
                    delivery.reason,
                ]
            )
            parts += delivery.blobs
        return {"deliveries": values}, parts
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, []


class PipedTransport:
    """A transport in another process, which `pass_on` serves.

    Args:
        asked: Takes calls.
        answered: Gives what they found.
    """

    def __init__(self, asked: BinaryIO, answered: BinaryIO) -> None:
        self._asked, self._answered = asked, answered

    def online(self) -> Mapping[str, int]:
        """See `Transport`."""
        return dict(self._call({"call": "online"})[0]["online"])

    def send(
        self, node_id: int, text: str, blobs: Sequence[bytes], seconds: float, group: str
    ) -> str:
        """See `Transport`."""
        asked = {"node_id": node_id, "text": text, "seconds": seconds, "group": group}
        return str(self._call({"call": "send", **asked}, blobs)[0]["ticket"])

    def receive(self, tickets: Sequence[str]) -> Sequence[Delivery]:
        """See `Transport`."""
        response, parts = self._call({"call": "receive", "tickets": [*tickets]})
        left, deliveries = iter(parts), []
        for ticket, text, count, code, reason in response["deliveries"]:
            deliveries.append(Delivery(ticket, text, [*islice(left, count)], code, reason))
        return deliveries

    def _call(
        self, asked: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Ask and wait.

        Raises:
            RunFailure: Flower reports an error, or its process has ended.
        """
        try:
            framing.send(self._asked, json.dumps(asked), blobs)
            text, parts = framing.receive(self._answered)
        except (EOFError, OSError):
            raise pf.RunFailure("Flower ended the run", do="resume it: --resume") from None
        response: dict[str, Any] = json.loads(text)
        if "error" in response:
            raise pf.RunFailure(f"Flower: {response['error']}")
        return response, parts

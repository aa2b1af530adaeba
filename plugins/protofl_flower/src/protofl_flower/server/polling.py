"""Waiting for the answers of nodes, with a deadline, and lines that name who is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from protofl_flower.protocol.transport import Delivery, RemoteNode, Transport

FIRST = 30.0
"""Seconds after which a line names the nodes that have not answered; then after twice as many."""


def answers(
    transport: Transport,
    waiting: dict[str, RemoteNode],
    what: str,
    poll: float,
    seconds: float,
    report: Callable[[str], None],
) -> Iterator[tuple[RemoteNode, Delivery]]:
    """Yield the answers of nodes as they come, until all have answered or the time is over.

    Args:
        transport: The way to the nodes.
        waiting: {ticket: node}; answered ones are removed, and the caller may add others.
        what: What is waited for, such as ``the plan``.
        poll: Seconds between two looks.
        seconds: Seconds to wait; 0 for no limit.
        report: Takes a line for the user.
    """
    began, next_line = time.monotonic(), FIRST
    while waiting:
        for delivery in transport.receive([*waiting]):
            node = waiting.pop(delivery.ticket, None)
            if node is not None:
                yield node, delivery
        passed = time.monotonic() - began
        if seconds and passed > seconds:
            return
        if waiting and passed > next_line:
            names = ", ".join(node.name for node in waiting.values())
            limit = f" of {seconds:g} s" if seconds else ""
            report(f"waiting for {names} to answer {what}: {passed:.0f} s{limit}")
            next_line *= 2
        time.sleep(poll if waiting else 0)

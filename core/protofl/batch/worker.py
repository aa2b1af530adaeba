"""A process of a batch: one run after the other, as its standard input says.

Each line there is an order, each line of its standard output something that is told of it; both are
JSON. It ends when its input closes, and a run that is going on ends then as one that is
interrupted does: finished rounds are in its folder. So nothing is left behind by a batch that is
killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

GRACE = 60.0
"""Seconds that a run has to end orderly."""


class _Orders:
    """The orders that come in, and whether there will be more."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._busy, self._over = False, False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the batch is interrupted, and ends this
        signal.signal(signal.SIGTERM, self._interrupt)
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any]:
        """The next order.

        Raises:
            EOFError: There is none any more.
        """
        line = self._lines.get()
        if line is None or self._over:
            raise EOFError
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> None:
        """From here on work is interrupted when the input closes."""
        self._busy = True
        if self._over:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        self._busy = False

    def _interrupt(self, number: int, frame: object) -> None:
        over, self._over = self._over, True
        if self._busy:
            self._busy = False  # it ends now, and is not interrupted in that
            raise KeyboardInterrupt
        if not over:
            self._lines.put(None)

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put(None)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            threading.Event().wait(GRACE)
        os._exit(1)


def main() -> None:
    """Carry out orders until the input closes."""
    orders = _Orders()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a plugin prints is nothing told
    from protofl.batch.doing import Doing

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    doing = Doing(tell, lambda: bool(orders.next()["goes_on"]))
    try:
        while True:
            order = orders.next()
            with orders:
                doing.do(order)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        doing.close()
    os._exit(0)


if __name__ == "__main__":
    main()

"""A worker process: a host that communicates by standard input and output.

Started as ``python -m protofl_plugins.backends.worker``, a fresh interpreter that never imports
the caller's main module. It ends as soon as its input closes, in the middle of a job too, so
that a killed run leaves no workers.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
from typing import Any, BinaryIO

import protofl as pf
from protofl_plugins.backends import wire


def _read(stream: BinaryIO, inbox: queue.Queue[tuple[dict[str, Any], bytes]]) -> None:
    while True:
        try:
            inbox.put(wire.receive(stream))
        except (EOFError, OSError):
            os._exit(0)


def main() -> None:
    """Serve jobs until the input closes."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of plugins are not messages
    inbox: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
    threading.Thread(target=_read, args=(incoming, inbox), daemon=True).start()

    host: pf.backends.Host | None = None
    warm = False
    answer: dict[str, Any]
    while True:
        header, blob = inbox.get()
        try:
            if "begin" in header:
                if host is not None:  # the run before in a session
                    host, warm = None, False
                    gc.unfreeze()
                    gc.collect()
                host = pf.backends.Host(pf.backends.Plan.from_json(blob.decode()))
                answer, data = pf.backends.Reply().header(), b""
            elif host is not None:
                answer, data = wire.answer(host, header, blob)
        except Exception as error:
            answer, data = wire.failure(error), b""
        try:
            wire.send(outgoing, answer, data)
        except OSError:  # the run was killed while this worked
            os._exit(0)
        if not warm and host is not None:
            host.warm_up()
            warm = True
            gc.freeze()  # libraries and plan stay: the collector need not walk through them again


if __name__ == "__main__":
    main()

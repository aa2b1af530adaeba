"""Who does the runs of a batch: processes, or this one."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Protocol

from protofl.batch.tasks import Message
from protofl.batch.wanted import to_values
from protofl.errors import RunFailure
from protofl.machine.interpreter import fresh_interpreter
from protofl.request.request import Request

GRACE = 45.0
"""Seconds that runs have to end when the batch does."""

LAST = 1500
"""Characters of what a process said last that are told when it has ended by itself."""


class Hand(Protocol):
    """Who does one thing at a time for a batch."""

    def order(self, order: dict[str, Any], request: Request) -> None:
        """Begin with something (`protofl.batch.doing.Doing.do`)."""
        ...

    def answer(self, goes_on: bool) -> None:
        """Whether the run that asked goes on."""
        ...

    def failure(self) -> RunFailure:
        """What to say where it has ended by itself."""
        ...

    def close(self) -> None:
        """Have it end; doesn't wait."""
        ...

    def wait(self, until: float) -> None:
        """Wait for its end, and no longer than to a time of `time.monotonic`."""
        ...


class ProcessHand:
    """A process that does one run after the other.

    It is its own, so that a run that crashes takes none of the others with it, and it stays for
    the next one, as starting it takes seconds.

    Args:
        inbox: Takes ``(hand, message)``; the message is None when the process has ended.
    """

    def __init__(self, inbox: queue.Queue[tuple[Hand, Message | None]]) -> None:
        command, environment = fresh_interpreter("protofl.batch.worker")
        self._said: IO[bytes] = tempfile.TemporaryFile()
        # Clients compute with one thread anyhow, and so do the runs beside this one.
        few = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**environment, **few, "PYTHONUNBUFFERED": "1"},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # ^C is the batch's, which ends its runs one by one
        )
        self._inbox = inbox
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # half a line of one that was killed
                self._inbox.put((self, json.loads(line)))
        self._inbox.put((self, None))

    def order(self, order: dict[str, Any], request: Request) -> None:
        """Begin with something."""
        self._send({**order, "request": to_values(request)})

    def answer(self, goes_on: bool) -> None:
        """Whether the run that asked goes on."""
        self._send({"goes_on": goes_on})

    def _send(self, message: Message) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which its reader tells
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def failure(self) -> RunFailure:
        """What to say where it has ended by itself."""
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - LAST))
        said = self._said.read().decode(errors="replace").strip()
        last = said.splitlines()[-1].strip() if said else ""
        return RunFailure(
            f"the process of the run {how}",
            f"it said last: {last}" if last else "",
            "signal 9 often means that memory ran out: do fewer runs at once" * (code == -9),
        )

    def close(self) -> None:
        """Have it end: a run that is going on ends behind what it has saved."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self, until: float) -> None:
        """Wait for its end; kill it where it takes too long, or where this is interrupted."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self.close()
            self._reading.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._said.close()


class Here:
    """Does one run after the other in this process, which sees the program's own classes.

    Args:
        take: Takes ``(hand, message)`` in the middle of a run.
    """

    def __init__(self, take: Callable[[Hand, Message], None]) -> None:
        from protofl.batch.doing import Doing

        self._goes_on = True
        self._doing = Doing(lambda message: take(self, message), lambda: self._goes_on)

    def order(self, order: dict[str, Any], request: Request) -> None:
        """Do something, to its end."""
        self._goes_on = True
        self._doing.do(order, request)

    def answer(self, goes_on: bool) -> None:
        """Whether the run that asked goes on."""
        self._goes_on = goes_on

    def failure(self) -> RunFailure:
        """It ends with this process."""
        return RunFailure("this process has ended")

    def close(self) -> None:
        """End the hosts that wait for a next run."""
        self._doing.close()

    def wait(self, until: float) -> None:
        """Nothing goes on."""

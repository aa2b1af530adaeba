"""Workers of a batch: processes, or this process.

A worker process reads pickled jobs from its standard input and writes pickled events and results.
It ends when its input closes; a run in progress is then interrupted, with its finished rounds in
its folder. So a batch that is killed leaves no processes.

`multiprocessing` would import the program's main module in each process and run a script without
``if __name__ == "__main__"`` again.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from protofl.errors import RunFailure
from protofl.federation.events import Event
from protofl.system.consent import inherited
from protofl.system.machine import fresh_interpreter
from protofl_workbench.batch.run_jobs import Job, JobRunner, Result

GRACE = 45.0
"""Seconds that runs have to end after the batch."""

LAST = 1500
"""Characters of a worker's last output in its error."""

WorkerMessage = Event | Result | None
"""An event of the run, a result, or None if the process has ended."""


class ProcessWorker:
    """A worker process: a crash affects no other run, and the process does later jobs too.

    Args:
        inbox: Takes the worker with each message.
    """

    def __init__(self, inbox: queue.Queue[tuple[ProcessWorker, WorkerMessage]]) -> None:
        command, environment = fresh_interpreter("protofl_workbench.batch.workers")
        self._output: IO[bytes] = tempfile.TemporaryFile()
        # Clients compute with one thread, and there is a run for each core.
        few = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={**environment, **few, **inherited(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # ^C interrupts the batch, which ends its runs
        )
        self._inbox = inbox
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(EOFError, pickle.UnpicklingError):  # from a killed process
            while True:
                self._inbox.put((self, pickle.load(self._process.stdout)))
        self._inbox.put((self, None))

    def send(self, job: Job) -> None:
        """Send a job."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended; its reader reports that
            pickle.dump(job, self._process.stdin)
            self._process.stdin.flush()

    def failure(self) -> RunFailure:
        """Return the error of a process that ended on its own."""
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - LAST))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return RunFailure(
            f"the process of the run {how}",
            f"last output: {lines[-1].strip()}" if lines else "",
            "signal 9 often means that memory ran out: use fewer parallel runs" * (code == -9),
        )

    def close(self) -> None:
        """Close the input, which interrupts a run in progress."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self, until: float) -> None:
        """Wait for the process until a time of `time.monotonic`, then kill it."""
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
            self._output.close()


class LocalWorker:
    """Carries out jobs in this process, which knows the classes of the program.

    Args:
        take: Takes this worker with a message.
    """

    def __init__(self, take: Callable[[LocalWorker, WorkerMessage], None]) -> None:
        self._take = take
        self._runner = JobRunner(lambda event: take(self, event))

    def send(self, job: Job) -> None:
        """Carry out a job to its end."""
        self._take(self, self._runner.run_job(job))

    def close(self) -> None:
        """Stop the idle hosts."""
        self._runner.close()


# --- the worker process ---------------------------------------------------------------------------


def main() -> None:
    """Carry out jobs until the input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the batch handles ^C
    signal.signal(signal.SIGTERM, _interrupt)
    inbox: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(inbox,), daemon=True).start()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # plugins may print

    def send(message: object) -> None:
        pickle.dump(message, out)
        out.flush()

    runner = JobRunner(send)
    try:
        while True:
            send(runner.run_job(inbox.get()))
    except (KeyboardInterrupt, BrokenPipeError):
        runner.close()
    os._exit(0)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # clean-up is not interrupted
    raise KeyboardInterrupt


def _read(inbox: queue.Queue[Any]) -> None:
    """Read messages; interrupt the work when the input closes."""
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            inbox.put(pickle.load(sys.stdin.buffer))
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        threading.Event().wait(GRACE + 15)
    os._exit(1)


if __name__ == "__main__":
    main()

"""The backend with worker processes on this machine, one thread each."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import BinaryIO, cast

import protofl as pf

from protofl_plugins.backends import wire


class Worker:
    """A worker process and the pipes to it.

    Args:
        number: Its number.
        plan: The plan, as JSON.
        core: The one core that it keeps to; None for any.
    """

    def __init__(self, number: int, plan: str, core: int | None) -> None:
        self.number = number
        command, environment = pf.fresh_interpreter("protofl_plugins.backends.worker")
        environment = {
            # Keep freed memory: every step frees and takes the same activations, and giving them
            # back to the system each time costs a tenth of a round in page faults (glibc only).
            "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
            "MALLOC_TOP_PAD_": str(64 << 20),
            **environment,
            "GLIBC_TUNABLES": _tunables(),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        if core is not None:
            with suppress(OSError):  # before it starts threads of its own, which follow it
                os.sched_setaffinity(self._process.pid, {core})
        self._in = cast(BinaryIO, self._process.stdin)
        self._out = cast(BinaryIO, self._process.stdout)
        self._ready = False
        with suppress(OSError):  # one that has ended already is found when it is asked
            wire.send(self._in, {}, plan.encode())

    def do(self, job: pf.Job) -> pf.Reply:
        """Have a job done.

        Raises:
            HostFailure: The process ended.
        """
        doing = str(job)
        if not self._ready:
            self._answer("starting")
            self._ready = True
        try:
            wire.send(self._in, job.header(), job.blob)
        except OSError:
            raise self._ended(doing) from None
        return self._answer(doing)

    def _answer(self, doing: str) -> pf.Reply:
        try:
            header, blob = wire.receive(self._out)
        except (EOFError, OSError):
            raise self._ended(doing) from None
        return wire.reply_of(header, blob)

    def _ended(self, doing: str) -> pf.HostFailure:
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return pf.HostFailure(
            f"worker {self.number} (process {self._process.pid}) {how} during: {doing}",
            do="signal 9 often means that memory ran out: try fewer --workers",
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._in, self._out):
            with suppress(OSError):  # what was not sent to an ended process can't be flushed
                stream.close()


def _tunables() -> str:
    """Settings of a worker's glibc; what the user has set comes later, and wins.

    Memory in huge pages: a step reads tens of megabytes of weights from end to end.
    """
    given = os.environ.get("GLIBC_TUNABLES")
    return ":".join(["glibc.malloc.hugetlb=1", *([given] if given else [])])


class Process:
    """Worker processes on this machine, one thread each, one per core unless told otherwise."""

    class Config(pf.Config):
        """Options."""

        pin: bool = pf.Field(
            False,
            description="keep each worker on a core of its own, where there are as many workers as "
            "cores and the system can (Linux); on shared machines slower than to let it move",
        )

    @pf.hookimpl
    def open_pool(self, plan: pf.Plan, config: Config, workers: int) -> pf.Dispatcher:
        """Start the workers; they load while the run prepares itself."""
        text, cores = plan.to_json(), pf.Dispatcher.cores()
        count = min(workers or len(cores), plan.info.num_clients)
        # Fewer than all would meet those of a second run on the same cores.
        pinned = config.pin and count == len(cores) and hasattr(os, "sched_setaffinity")

        def start(number: int) -> Worker:
            return Worker(number, text, cores[number] if pinned else None)

        return pf.Dispatcher(start, count, job_limit=plan.settings.job_limit)

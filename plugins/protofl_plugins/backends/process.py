"""The backend with worker processes on this machine, one thread each."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, cast

import protofl as pf

from protofl_plugins.backends import wire


class Worker:
    """A worker process and the pipes to it."""

    def __init__(self, number: int, plan: str) -> None:
        self.number = number
        environment = {
            # Keep freed memory: every step frees and takes the same activations, and giving them
            # back to the system each time costs a tenth of a round in page faults (glibc only).
            "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
            "MALLOC_TOP_PAD_": str(64 << 20),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "protofl_plugins.backends.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._in = cast(BinaryIO, self._process.stdin)
        self._out = cast(BinaryIO, self._process.stdout)
        wire.send(self._in, {}, plan.encode())

    def ready(self) -> None:
        """Wait until the worker has built its host."""
        self._answer("starting")

    def do(self, job: pf.Job) -> pf.Reply:
        """Have a job done.

        Raises:
            HostFailure: The process ended.
        """
        doing = job.op if job.client is None else f"{job.op} of client {job.client}"
        if "round" in job.values:
            doing += f" in round {job.values['round']}"
        header = {"op": job.op, "client": job.client, "values": job.values}
        try:
            wire.send(self._in, header, job.blob)
        except OSError:
            raise self._ended(doing) from None
        return self._answer(doing)

    def _answer(self, doing: str) -> pf.Reply:
        try:
            header, blob = wire.receive(self._out)
        except (EOFError, OSError):
            raise self._ended(doing) from None
        if "failure" in header:
            raise pf.error_from_values(header["failure"])
        values: dict[str, Any] = header["values"]
        return pf.Reply(values, blob)

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


class ProcessPool:
    """Worker processes; a client stays with the worker that it first met."""

    def __init__(self, plan: pf.Plan, workers: int) -> None:
        text = plan.to_json()
        self._pins: dict[int, int] = {}
        self._workers = [Worker(number, text) for number in range(workers)]
        self._waiting = list(self._workers)

    def _wait_until_ready(self) -> None:
        while self._waiting:
            self._waiting.pop().ready()

    def run(self, jobs: list[pf.Job]) -> Iterator[tuple[pf.Job, pf.Reply]]:
        """Deal jobs to workers as they become free; clients that have met one go to theirs."""
        self._wait_until_ready()
        left, lock = list(jobs), threading.Lock()
        done: queue.Queue[tuple[pf.Job, pf.Reply] | Exception | None] = queue.Queue()

        def take(number: int) -> pf.Job | None:
            with lock:
                for position, job in enumerate(left):
                    if self._pins.get(cast(int, job.client), number) == number:
                        self._pins[cast(int, job.client)] = number
                        return left.pop(position)
            return None

        def serve(worker: Worker) -> None:
            try:
                while (job := take(worker.number)) is not None:
                    done.put((job, worker.do(job)))
                done.put(None)
            except Exception as error:
                done.put(error)

        threads = [
            threading.Thread(target=serve, args=(worker,), daemon=True) for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        idle = 0
        while idle < len(threads):
            item = done.get()
            if item is None:
                idle += 1
            elif isinstance(item, Exception):
                with lock:
                    left.clear()
                raise item
            else:
                yield item

    def broadcast(self, job: pf.Job) -> None:
        """Have every worker do a job; clients are dealt anew afterwards."""
        self._wait_until_ready()
        self._pins.clear()
        for worker in self._workers:
            worker.do(job)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()


class Process:
    """Worker processes on this machine, one thread each, one per core unless told otherwise."""

    @pf.hookimpl
    def open_pool(self, plan: pf.Plan, workers: int) -> ProcessPool:
        """Start the workers; they load while the run prepares itself."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return ProcessPool(plan, min(workers or cores or 1, plan.info.num_clients))

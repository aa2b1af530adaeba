"""The backend with worker processes on this machine, one thread each, and one GPU each if any."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO, ClassVar, cast

import protofl as pf
from protofl_plugins.backends import wire


class Worker:
    """A worker process and the pipes to it.

    Args:
        start: The command that starts it, and its environment.
        core: The one core that it keeps to; None for any.

    One that computes on a GPU sees no other GPU, see `protofl.backends.visible_as_only`.

    Attributes:
        classes: {place of a class that is not installed: its version} of all that it has loaded.
        whole: Whether it has done a job and waits for the next one.
    """

    def __init__(self, start: tuple[list[str], dict[str, str]], core: int | None) -> None:
        command, environment = start
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
        self._name, self._ready = "", False
        self.classes: dict[str, str] = {}
        self.whole = False

    def begin(self, number: int, plan: str, device: str) -> None:
        """Assign the worker to a run.

        Args:
            number: Its number there.
            plan: The plan, as JSON.
            device: Where it computes, by the run's name for it.
        """
        self._ready = False
        self._name = f"worker {number}" + (f" on {device}" if device != "cpu" else "")
        with suppress(OSError):  # one that has ended already is found when it is asked
            wire.send(self._in, {"begin": True}, plan.encode())

    def serves(self, classes: Mapping[str, str]) -> bool:
        """Return True if it lives and has loaded none of these classes in another version."""
        known = self.classes
        fits = all(known.get(place, version) == version for place, version in classes.items())
        return fits and self._process.poll() is None

    def ready(self) -> None:
        """Wait until the process has started and made the plan.

        Raises:
            HostFailure: The process ended.
            UsageError: It can't compute on its device, which has no memory left, for example.
        """
        if self._ready:
            return
        try:
            self._answer("starting")
        except pf.UsageError as error:
            error.what = f"{self._name}: {error.what}"
            raise
        self._ready = True

    def do(self, job: pf.backends.Job) -> pf.backends.Reply:
        """Execute a job and return the reply.

        Raises:
            HostFailure: The process ended.
            UsageError: It can't compute on its device.
        """
        doing, self.whole = str(job), False
        self.ready()
        try:
            wire.send(self._in, job.header(), job.blob)
        except OSError:
            raise self._ended(doing) from None
        reply = self._answer(doing)
        self.whole = True
        return reply

    def _answer(self, doing: str) -> pf.backends.Reply:
        try:
            header, blob = wire.receive(self._out)
        except (EOFError, OSError):
            raise self._ended(doing) from None
        return wire.reply_of(header, blob)

    def _ended(self, doing: str) -> pf.backends.HostFailure:
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return pf.backends.HostFailure(
            f"{self._name} (process {self._process.pid}) {how} during: {doing}",
            do="signal 9 often means that memory ran out: try fewer --workers",
        )

    def close(self) -> None:
        """End the process."""
        self.whole = False
        self._process.kill()
        self._process.wait()
        for stream in (self._in, self._out):
            with suppress(OSError):  # what was not sent to an ended process can't be flushed
                stream.close()


class Lent:
    """A worker for the time of a run, which leaves it for the next one.

    Args:
        worker: The worker.
        leave: Takes it when the run is over.
    """

    def __init__(self, worker: Worker, leave: Callable[[Worker], None]) -> None:
        self._worker, self._leave, self._lent = worker, leave, True

    def ready(self) -> None:
        """Wait until it has started, see `Worker`."""
        self._worker.ready()

    def do(self, job: pf.backends.Job) -> pf.backends.Reply:
        """Execute a job, see `Worker`."""
        return self._worker.do(job)

    def close(self) -> None:
        """Return a waiting worker to the idle ones; end any other."""
        if not self._lent:
            return
        self._lent = False
        if self._worker.whole:
            self._leave(self._worker)
        else:
            self._worker.close()


def _started() -> tuple[list[str], dict[str, str]]:
    """The command that starts a worker, and its environment."""
    command, environment = pf.backends.fresh_interpreter(
        "protofl_plugins.backends.worker", uninterrupted=True
    )
    return command, {
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


def _tunables() -> str:
    """Settings of a worker's glibc; what the user has set comes later, and wins.

    Memory in huge pages: a step reads tens of megabytes of weights from end to end.
    """
    user_tunables = os.environ.get("GLIBC_TUNABLES")
    return ":".join(["glibc.malloc.hugetlb=1", *([user_tunables] if user_tunables else [])])


def device_of_worker(plan: pf.backends.Plan, number: int) -> tuple[str, str, dict[str, str]]:
    """Return where a worker computes: worker i on GPU i mod n.

    Returns:
        The run's name of the device, the worker's own name of it, and what makes it the only GPU
        that the worker sees.
    """
    device = plan.devices[number % len(plan.devices)]
    only = pf.backends.visible_as_only(device)
    return str(device), device.type if only else str(device), only


class Process:
    """Worker processes on this machine, one thread each, by default one per core.

    On GPUs there is by default one for each GPU that ``--device`` names.
    """

    uses_devices: ClassVar[bool] = True

    class Config(pf.Config):
        """Options."""

        pin: bool = pf.Field(
            False,
            description="keep each worker on a core of its own, where there are as many workers as "
            "cores and the system can (Linux); on shared machines slower than to let it move",
        )

    @pf.hookimpl
    def open_pool(
        self, plan: pf.backends.Plan, config: Config, workers: int, idle: pf.backends.Idle | None
    ) -> pf.backends.Dispatcher:
        """Start the workers; they load while the run prepares itself."""
        cores = pf.backends.Dispatcher.cores()
        usual = len(cores) if plan.device.type == "cpu" else len(plan.devices)
        count = min(workers or usual, plan.info.num_clients)
        # Fewer than all would meet those of a second run on the same cores.
        pinned = config.pin and hasattr(os, "sched_setaffinity")
        pinned = pinned and count == len(os.sched_getaffinity(0))
        command, environment = _started()
        classes = {
            place: plan.registry.find(*label.split("/", 1)).version
            for label, place in plan.settings.classes.items()
        }

        def host(number: int) -> Worker | Lent:
            core = cores[number] if pinned else None
            device, own_name, only = device_of_worker(plan, number)
            start = command, environment | only
            key = (core, *command, *sorted(start[1].items()))
            idle_worker = None if idle is None else idle.take(key, lambda w: w.serves(classes))
            worker: Worker = idle_worker or Worker(start, core)
            worker.classes |= classes
            worker.begin(number, plan.to_json(own_name), device)
            return worker if idle is None else Lent(worker, lambda left: idle.put(key, left))

        return pf.backends.Dispatcher(host, count, job_limit=plan.settings.job_limit)

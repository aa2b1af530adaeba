"""This machine: its cores, its facts, fresh interpreters, time limits and idle hosts."""

from __future__ import annotations

import math
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from protofl.errors import Late, Overtime


def usable_cores() -> list[int]:
    """Return the numbers of the processor cores that this process can use, ascending.

    A container or ``taskset`` can limit them. Under a CPU quota these are only as many as it pays
    for; the process may still run on others. On macOS and Windows all cores, counted from 0.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0))
    return cores[: math.ceil(min(_cpu_quota(), len(cores)))]


def _cpu_quota() -> float:
    """Return the cores that the quotas of cgroups v1 and v2 allow; infinity without a quota."""
    folders = [_GROUP, _GROUP / "cpu"]
    with suppress(OSError, ValueError):
        for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "cpu" in kinds.split(","):  # v2, or v1
                own = (_GROUP / "cpu" if kinds else _GROUP) / path.lstrip("/")
                folders += [own, *(group for group in own.parents if _GROUP in group.parents)]
    quotas = [math.inf]
    for folder in folders:
        with suppress(OSError, ValueError):  # "max" stands for no limit
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            quotas.append(quota / period)
        with suppress(OSError, ValueError):
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            if quota > 0:  # -1 stands for no limit
                quotas.append(quota / int((folder / "cpu.cfs_period_us").read_text()))
    return min(quotas)


def free_ram() -> int | None:
    """Return the bytes of memory that this machine or its container still has; None if not known.

    Linux counts what it can free at once (caches of files) as free.
    """
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    for folder, limit, used, caches in _OF_CONTAINERS:
        with suppress(OSError, ValueError):  # "max" stands for no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            words = (folder / "memory.stat").read_text().split()
            found.append(max(0, left + int(words[words.index(caches) + 1])))
    return min(found, default=None)


_GROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_OF_CONTAINERS = [
    (_GROUP, "memory.max", "memory.current", "inactive_file"),
    (
        _GROUP / "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
]
"""Files of cgroups v2 and v1 with a container's limit and use of memory, file caches included."""

_LIMITS = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that keep a library from using all instructions of the processor."""


def machine_facts() -> dict[str, str]:
    """Return the facts about this machine that the record of a run holds: {name: value}.

    - ``processor``: its type.
    - ``instruction_set``: the largest one that torch's own kernels use here (``AVX512``).
    - ``instruction_limits``: the environment variables that limit the instructions of oneDNN, MKL
      or OpenBLAS; ``none`` if none is set.

    Two machines with equal facts and the same torch compute the same to the last bit.
    """
    import torch  # takes a second, and some callers do not need it

    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return {
        "processor": processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "instruction_limits": " ".join(limits) or "none",
    }


@cache
def processor() -> str:
    """Return the name of the processor, with its family and model number where Linux gives them.

    Virtual machines often hide the name, so the numbers are needed to tell two types apart.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (li.partition(":") for li in lines)}
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {fields[of]}" for key, of in _NUMBERS.items() if fields.get(of)]
    return f"{name} ({', '.join(numbers)})" if numbers else name


_NUMBERS = {"family": "cpu family", "model": "model"}


def recorded_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions and machine facts on which results may depend, {name in words: value}.

    Args:
        config: The content of ``config.json``.
    """
    facts = {**config.get("versions", {}), **config.get("machine", {})}
    return {name.replace("_", " "): value for name, value in facts.items()}


_START = "import runpy, sys; runpy.run_module(sys.argv[1], run_name='__main__')"
_UNINTERRUPTED = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "


def fresh_interpreter(
    module: str, *, uninterrupted: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module in a new interpreter with this one's path.

    It imports nothing from the current folder, unless this process has it on its path by name.

    Args:
        module: The module's name; it runs as ``__main__``.
        uninterrupted: True if the process ignores Ctrl-C from its start, while it imports too. A
            terminal sends it to all processes of a run, and the run ends its own.

    Returns:
        The command, and the environment to start it with.
    """
    path = os.pathsep.join(p for p in sys.path if p)
    start = _UNINTERRUPTED + _START if uninterrupted else _START
    # Without -P, the current folder is first on the path, where a ``queue.py`` would hide Python's.
    return [sys.executable, "-P", "-c", start, module], {**os.environ, "PYTHONPATH": path}


@contextmanager
def time_limit(seconds: float, what: str, do: str = "") -> Iterator[None]:
    """Interrupt a block that takes longer, repeatedly if it continues.

    The limit works in the main thread of a process, not on Windows, and not inside compiled code
    that never returns. Elsewhere, or if the program uses the alarm signal, there is no limit.

    Args:
        seconds: The limit; 0 for none.
        what: The work, for the error; an `error_context` inside adds the hook.
        do: Advice, for the error.

    Raises:
        Late: The block took longer.
    """
    main = threading.current_thread() is threading.main_thread()
    able = main and hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if not seconds or not able:
        yield
        return

    def late(number: int, frame: Any) -> None:  # noqa: ANN401 - as Python calls it
        where = f"process {os.getpid()} on {socket.gethostname()}"
        raise Overtime(f"no end after {seconds:g} s (--job-limit) in {where}")

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield
    except Overtime as error:
        raise Late(f"{what}: {error}", do=do) from error
    except Late as error:
        error.do = do or error.do
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Idle:
    """Idle hosts that another run may reuse.

    A backend takes a host that matches its own settings (`take`), and returns working hosts at the
    end of a run (`put`).
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Hashable, Any]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Hashable, host: Any) -> None:  # noqa: ANN401 - has close()
        """Add an idle host.

        Args:
            key: The settings with which it was started.
            host: The host.
        """
        self._waiting.append((key, host))

    def take(self, key: Hashable, fits: Callable[[Any], bool] = lambda host: True) -> Any:  # noqa: ANN401
        """Remove and return a fitting host with this key, or None."""
        for place, (host_key, host) in enumerate(self._waiting):
            if host_key == key and fits(host):
                del self._waiting[place]
                return host
        return None

    def close(self) -> None:
        """Close all idle hosts."""
        while self._waiting:
            self._waiting.pop()[1].close()

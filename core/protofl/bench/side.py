"""One loop in a process of its own, behind standard input and output.

Started as ``python -m protofl.bench.side``: so that the two loops that are compared share neither
memory nor caches, and each one's peak memory is its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from protofl.bench.compare import write_state
from protofl.bench.loops import Loop, double_precision, open_loop
from protofl.data.batches import batch_bounds
from protofl.errors import ProtoflError
from protofl.plan.plan import Plan


def main() -> None:
    """Make the plan and the loop that the first line asks for, then obey one line after another."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # who is interrupted is the driver, which ends this
    asked, answers = sys.stdin, os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no answer

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        first = json.loads(asked.readline())
        plan = Plan.make(first["options"], report=lambda line: None)
        with double_precision() if first["double"] else nullcontext():
            loop = open_loop(plan, Path(first["folder"]), first["file"])
            answer(about(plan))
            for line in asked:
                wanted = json.loads(line)
                answer(OPERATIONS[wanted.pop("op")](loop, **wanted))
            loop.close()
    except Exception as error:
        answer({"failure": ProtoflError.to_values(error)})


def about(plan: Plan) -> dict[str, Any]:
    """What is measured, in numbers."""
    settings = plan.settings
    sizes = plan.split(0).offsets.diff()
    steps = [len(batch_bounds(int(n), settings.batch_size, settings.drop_last)) for n in sizes[::2]]
    return {
        "steps": sum(steps) * settings.local_epochs,
        "train_samples": int(sizes[::2].sum()),
        "test_samples": int(sizes[1::2].sum()),
        "backend": settings.backend,
        "engine": settings.engine,
        "device": str(plan.device),
        "precision": settings.precision,
        "workers": settings.workers,
        "server_threads": settings.server_threads,
        "threads": torch.get_num_threads(),
    }


def work(loop: Loop, part: str, number: int) -> dict[str, Any]:
    """A part of a round.

    Its seconds by stage; ``total`` by a clock around it, and ``cpu``, what all cores together spent
    on it (this process and its descendants), which a busy machine disturbs less.
    """
    run: Callable[[int], dict[str, float]] = getattr(loop, part)
    _synchronise()
    cpu, begin = cpu_seconds(), time.perf_counter()
    seconds = dict(run(number))
    _synchronise()
    seconds["total"] = time.perf_counter() - begin
    return {"seconds": {**seconds, "cpu": cpu_seconds() - cpu}}


def state(loop: Loop, path: str) -> dict[str, Any]:
    """Write what the loop has reached."""
    return write_state(loop, Path(path))


def memory(loop: Loop) -> dict[str, Any]:
    """Peak memory of this process and its descendants, in bytes."""
    return peak_memory()


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "work": work,
    "state": state,
    "memory": memory,
}


def _synchronise() -> None:
    if _gpu():
        torch.cuda.synchronize()


def _gpu() -> bool:
    """Whether this process has used one."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def peak_memory() -> dict[str, Any]:
    """The sum of the peak resident sets of this process and its descendants.

    An upper bound: peaks need not fall together, and pages that processes share (libraries, the
    mapped data) count in each. Where there is no ``/proc``, this process alone.

    Returns:
        ``host``: bytes; ``processes``: how many; ``device``: bytes at the peak that this process's
        tensors took on a GPU, 0 without one.
    """
    device = 0
    if _gpu():
        device = sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    found = [peak for pid in _family(os.getpid()) if (peak := _peak(pid))]
    if not found:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        found = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]
    return {"host": sum(found), "processes": len(found), "device": device}


def cpu_seconds() -> float:
    """Processor seconds of this process and its descendants so far."""
    own = time.process_time()
    return own + sum(_spent(pid) for pid in _family(os.getpid())[1:])


def _spent(pid: int) -> float:
    try:
        # The fields behind the program's name in brackets, which may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    found = [pid]
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:
            continue
        for child in children:
            found += _family(int(child))
    return found


def _peak(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


if __name__ == "__main__":
    main()

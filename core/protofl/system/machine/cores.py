"""What of the machine this process may use, how much of it, and how torch computes on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def usable_cores() -> list[int]:
    """The numbers of the processor cores on which this process may run, ascending.

    A container or ``taskset`` can leave it fewer than the machine has. Where the system doesn't say
    (macOS, Windows), all cores, counted from 0.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Have torch compute with so many threads inside, as rounding depends on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Where it is wanted, have torch compute with deterministic CUDA kernels alone inside."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        # Setting it as it is would import torch's compiler, which takes more than a second.
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass: bf16 autocast for ``bf16``, nothing for ``fp32``."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()

"""What of the machine this process may use, and how much of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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

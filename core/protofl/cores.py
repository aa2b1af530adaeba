"""What of the machine this process may use."""

from __future__ import annotations

import os


def usable_cores() -> list[int]:
    """The numbers of the processor cores on which this process may run, ascending.

    A container or ``taskset`` can leave it fewer than the machine has. Where the system doesn't say
    (macOS, Windows), all cores, counted from 0.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

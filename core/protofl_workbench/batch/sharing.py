"""How cores are shared out among runs that are done at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protofl.runs.request import Request
from protofl.system.machine import usable_cores


def shared(
    requests: Sequence[Request], at_once: int | None, *, on_gpu: bool = False
) -> tuple[int, int]:
    """How many runs are done at once, and how many hosts each has.

    A run that has one host has it in its own process: that is the most that a core can do. So where
    there are as many runs as cores, each has one; where there are fewer, hosts of theirs take the
    cores that are left.

    Args:
        requests: The runs.
        at_once: Runs at once, where the user says so; 0 for one in this process.
        on_gpu: Whether they compute on a GPU, where two would only be in each other's way.

    Returns:
        Both numbers; 0 hosts for as many as a run has by itself.
    """
    if at_once == 0:
        return 1, 0
    cores, count = len(usable_cores()), max(1, len(requests))
    own = max((int(r.options.get("workers") or 0) for r in requests), default=0)
    most = at_once or (1 if on_gpu else max(1, cores // max(own, 1)))
    most = min(most, count)
    return most, max(1, cores // most)


def placed(request: Request, hosts: int) -> Request:
    """A request with so many hosts, unless it says itself where clients live.

    Results depend on none of it: where they would, an engine trains several clients at once, and
    then there is one host whatever is asked for.
    """
    given = request.options
    said = given.get("workers") or given.get("backend", "auto") != "auto"
    if not hosts or said or "backend" in given.get("options", {}):
        return request
    place = {"backend": "local"} if hosts == 1 else {"workers": hosts}
    return replace(request, options={**given, **place})

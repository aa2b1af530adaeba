"""Placement of clients on hosts by measured training time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

WORTH = 1.1
"""Factor by which a round must be longer than after moving clients, before clients move."""


class Seconds:
    """Seconds of clients' local training, smoothed over rounds.

    A client that trains in several stages of a round has a figure for each; its cost is their sum.
    """

    def __init__(self) -> None:
        self._stages: dict[str, dict[int, float]] = {}

    def add(self, client: int, stage: str, seconds: float) -> None:
        """Take in a measurement."""
        stages = self._stages.setdefault(stage, {})
        stages[client] = (stages.get(client, seconds) + seconds) / 2

    def of(self, clients: Iterable[int]) -> dict[int, float]:
        """Return {client: seconds of a round} of the measured clients."""
        sums = {c: [s[c] for s in self._stages.values() if c in s] for c in clients}
        return {client: sum(seconds) for client, seconds in sums.items() if seconds}


def place(
    costs: Mapping[int, float], at: Mapping[int, int], hosts: Sequence[int]
) -> dict[int, int]:
    """Assign clients to hosts, the costliest client first, to the host with the least work.

    Args:
        costs: {client: seconds}.
        at: {client: host} of those clients that would have to be moved.
        hosts: The hosts.

    Returns:
        {client: host}. Clients stay where they are unless the longest host's work is then more
        than `WORTH` times what it is after moving; of those that move, as few as make it equal.
    """
    order = sorted(costs, key=lambda client: (-costs[client], client))
    held = {client: host for client, host in at.items() if client in costs}
    loads = dict.fromkeys(hosts, 0.0)
    for client, host in held.items():
        loads[host] += costs[client]
    stay, longest = _deal([c for c in order if c not in held], costs, loads, {}, 0.0)
    nothing = dict.fromkeys(hosts, 0.0)
    best, shortest = _deal(order, costs, nothing, {}, 0.0)
    if longest <= WORTH * shortest:
        return held | stay
    few, near = _deal(order, costs, nothing, held, shortest)
    return few if near <= 1.05 * shortest else best


def _deal(
    order: Iterable[int],
    costs: Mapping[int, float],
    loads: Mapping[int, float],
    at: Mapping[int, int],
    limit: float,
) -> tuple[dict[int, int], float]:
    """Assign clients to hosts; a client stays if its host's work is within the limit.

    Returns:
        {client: host}, and the work of the host with most of it.
    """
    sums, chosen = dict(loads), {}
    for client in order:
        host = at.get(client)
        if host is None or sums[host] + costs[client] > limit:
            host = min(sums, key=sums.__getitem__)
        sums[host] += costs[client]
        chosen[client] = host
    return chosen, max(sums.values())

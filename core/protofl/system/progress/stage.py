"""The mini-batches of a stage of a round that are done, of all clients."""

from __future__ import annotations

from collections.abc import Mapping


class Stage:
    """Takes what hosts report of their jobs, and sums it up.

    Args:
        steps: {client: mini-batches that it has to do}.
        costs: {client: cost of one of them, relative to others}.
    """

    def __init__(self, steps: Mapping[int, int], costs: Mapping[int, float]) -> None:
        self._steps, self._costs = steps, costs
        self._reported: dict[int, int] = {}
        self.done, self.steps = 0, sum(steps.values())
        self._work, self._whole = 0.0, sum(n * costs[client] for client, n in steps.items())

    def take(self, client: int, done: int | None = None) -> bool:
        """Note how many mini-batches of a client are done, or all; return True if that changes."""
        most = self._steps.get(client, 0)
        now = most if done is None else min(done, most)
        more = now - self._reported.get(client, 0)
        if not more:
            return False
        self._reported[client] = now
        self.done += more
        self._work += more * self._costs[client]
        return True

    @property
    def share(self) -> float:
        """Share of the work that is done, 0 to 1."""
        return min(1.0, self._work / self._whole) if self._whole else 0.0

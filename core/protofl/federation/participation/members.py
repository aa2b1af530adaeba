"""The clients that there are in a round: all, but those that come later and those unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protofl.federation.arrivals import first_rounds, participants, unseen_clients
from protofl.federation.plan.plan import Plan


class Members:
    """Who may be asked in the rounds of a trial (``--unseen``, ``--join-round``).

    Args:
        plan: The run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all = not (plan.settings.unseen or plan.settings.join_round)
        self.unseen: list[int] = []
        """The clients that never train, ascending."""
        self.start(0)

    def start(self, trial: int) -> None:
        """Begin a trial: its seed's clients."""
        if self._all:
            return
        settings, clients = self._plan.settings, self._plan.info.num_clients
        seed = self._plan.seed(trial)
        self.unseen = sorted(unseen_clients(seed, clients, settings.unseen))
        self._first = first_rounds(seed, clients, settings.unseen, settings.join_round)

    def at(self, round: int) -> np.ndarray | None:
        """The clients that there are in a round, ascending; None for all."""
        return None if self._all else np.flatnonzero(self._first <= round)

    def numbers(self, round: int) -> Sequence[int]:
        """The same as numbers."""
        there = self.at(round)
        found: list[int] = [] if there is None else there.tolist()
        return range(self._plan.info.num_clients) if there is None else found

    def asked(self, round: int) -> int:
        """How many of them take part in a round: ρ of those that there are, one at least."""
        there = self.at(round)
        if there is None:
            return self._plan.info.participants
        return participants(self._plan.settings.participation, len(there))

    def line(self, round: int) -> dict[str, Any]:
        """What a round's line of the record says of clients that join, and of unseen ones."""
        joined = [] if self._all or not round else np.flatnonzero(self._first == round).tolist()
        found = {"joined": joined, "unseen": self.unseen}
        return {key: clients for key, clients in found.items() if clients}

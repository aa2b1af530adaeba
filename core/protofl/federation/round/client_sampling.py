"""Clients that the server asks: members of a round, chosen by a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protofl.errors import RunFailure, error_context
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.run_description import participants, reads_losses
from protofl.system.files.tables import finite
from protofl.system.machine import time_limit
from protofl.system.randomness import numpy_stream


class Membership:
    """Clients that may be asked in each round of a trial (``--unseen``, ``--join-round``).

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
        """Start a trial with the clients of its seed."""
        if self._all:
            return
        from protofl.federation.plan.client_arrivals import first_rounds, unseen_clients

        settings, clients = self._plan.settings, self._plan.info.num_clients
        seed = self._plan.seed(trial)
        untrained = self._plan.split(trial).untrained
        self.unseen = sorted(unseen_clients(seed, clients, settings.unseen, untrained))
        joins = settings.join_round
        self._first = first_rounds(seed, clients, settings.unseen, joins, untrained)

    def at(self, round: int) -> np.ndarray | None:
        """Return the clients available in a round, ascending; None for all."""
        return None if self._all else np.flatnonzero(self._first <= round)

    def numbers(self, round: int) -> Sequence[int]:
        """Return the same clients as a sequence of numbers."""
        there = self.at(round)
        clients: list[int] = [] if there is None else there.tolist()
        return range(self._plan.info.num_clients) if there is None else clients

    def asked(self, round: int) -> int:
        """Return the number of participants of a round: a share ρ of the available clients."""
        there = self.at(round)
        if there is None:
            return self._plan.info.participants
        return participants(self._plan.settings.participation, len(there))

    def line(self, round: int) -> dict[str, Any]:
        """Return the keys of the record about joined and unseen clients."""
        joined = [] if self._all or not round else np.flatnonzero(self._first == round).tolist()
        clients_by_key = {"joined": joined, "unseen": self.unseen}
        return {key: clients for key, clients in clients_by_key.items() if clients}


def default_participants(seed: int, round: int, clients: int, participants: int) -> list[int]:
    """Return the participants of the default sampling, which a record does not list.

    Args:
        seed: The trial's seed.
        round: The round.
        clients: Clients M of the run.
        participants: How many of them take part.
    """
    stream = numpy_stream(seed, "participants", round)
    return sorted(stream.choice(clients, participants, replace=False).tolist())


class ClientSampler:
    """Sampling of clients in the rounds of a trial by a plugin.

    Args:
        plan: The run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._choice = plan, plan.choices["client-sampler"]
        self._heard: dict[str, float | None] | None = {} if reads_losses(self._choice) else None

    def start(self, trial: int) -> None:
        """Start a trial without known losses."""
        self._seed = self._plan.seed(trial)
        self._everyone = _fixed(np.arange(self._plan.info.num_clients))
        self._sizes = _fixed(self._plan.split(trial).train_sizes.numpy())
        self._losses = np.full(len(self._everyone), np.nan)

    def learn(self, losses: Mapping[str, float | None]) -> None:
        """Store clients' losses, NaN for None."""
        for client, loss in losses.items():
            self._losses[int(client)] = np.nan if loss is None else loss

    def hear(self, losses: Mapping[int, float]) -> None:
        """Store the mean losses of the clients whose uploads count, if the plugin reads losses."""
        if self._heard is not None:
            self._heard = {str(client): finite(loss) for client, loss in losses.items()}
            self.learn(self._heard)

    def line(self) -> dict[str, Any]:
        """Return the losses for the record; empty if the plugin reads no losses."""
        return {"client_losses": self._heard} if self._heard is not None else {}

    def choose(
        self, round: int, count: int, there: np.ndarray | None = None, draw: int = 0
    ) -> list[int]:
        """Return the participants of a round, ascending.

        Args:
            round: The round.
            count: How many.
            there: Those who can be asked, ascending; None for all.
            draw: How often the round has asked before; each draw has a random stream of its own.

        Raises:
            RunFailure: The plugin chose an unknown client, or a client twice.
        """
        clients = self._everyone if there is None else _fixed(there)
        place = f"select of client-sampler/{self._choice.name}, round {round + 1}"
        with time_limit(self._plan.settings.job_limit, place), error_context(place):
            selected = self._choice.call(
                "select",
                round=round,
                count=min(count, len(clients)),
                clients=clients,
                sizes=self._sizes,
                losses=_fixed(self._losses),
                generator=numpy_stream(
                    self._seed, "participants", round, *([draw] if draw else [])
                ),
            )
            return _checked(selected, clients)


def _fixed(values: np.ndarray) -> np.ndarray:
    """Return an array that a plugin cannot change."""
    view: np.ndarray = values.view()
    view.setflags(write=False)
    return view


def _checked(selected: Any, clients: np.ndarray) -> list[int]:  # noqa: ANN401 - it may be anything
    """Return the clients that a plugin selected, ascending.

    Raises:
        RunFailure: These are not some of the clients, each once.
    """
    chosen = np.asarray(selected)
    if chosen.ndim != 1 or not (chosen.dtype.kind in "iu" or not chosen.size):
        shown = f"{chosen.dtype} of shape {list(chosen.shape)}"
        raise RunFailure(f"it returns {shown}", do="return a list of client numbers")
    if len(np.unique(chosen)) < len(chosen):
        twice = next(int(c) for c in chosen if (chosen == c).sum() > 1)
        raise RunFailure(f"it returns client {twice} twice", do="return each client once")
    places = np.searchsorted(clients, chosen).clip(max=max(len(clients) - 1, 0))
    strange = chosen[clients[places] != chosen] if len(clients) else chosen
    if len(strange):
        raise RunFailure(
            f"it returns client {strange[0]}, who cannot be asked",
            f"{len(clients)} clients can: {', '.join(map(str, clients[:8]))}"
            f"{', …' if len(clients) > 8 else ''}",
            "return some of clients",
        )
    return sorted(chosen.astype(int).tolist())

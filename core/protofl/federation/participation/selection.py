"""The clients that the server asks, as a plugin chooses them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from protofl.errors import RunFailure, naming
from protofl.federation.plan.plan import Plan
from protofl.records.folder.row import Row
from protofl.system.files.tables import finite
from protofl.system.machine import at_most
from protofl.system.randomness import numpy_stream


class Selection:
    """Who is asked in the rounds of a trial.

    Args:
        plan: The run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._choice = plan, plan.choices["selection"]
        taken = inspect.signature(self._choice.instance.select).parameters
        self._heard: dict[str, float | None] | None = {} if "losses" in taken else None

    def start(self, trial: int) -> None:
        """Begin a trial: no losses are known."""
        self._seed = self._plan.seed(trial)
        self._everyone = _fixed(np.arange(self._plan.info.num_clients))
        self._sizes = _fixed(self._plan.split(trial).train_sizes.numpy())
        self._losses = np.full(len(self._everyone), np.nan)

    def take_up(self, row: Row) -> None:
        """Learn the losses that a line of the record has."""
        self._learn(row.client_losses)

    def _learn(self, losses: Mapping[str, float | None]) -> None:
        for client, loss in losses.items():
            self._losses[int(client)] = np.nan if loss is None else loss

    def hear(self, losses: Mapping[int, float]) -> None:
        """What clients whose uploads count had as mean loss; forgotten where nobody asks for it."""
        if self._heard is not None:
            self._heard = {str(client): finite(loss) for client, loss in losses.items()}
            self._learn(self._heard)

    def line(self) -> dict[str, Any]:
        """What the round's line of the record says of losses; nothing where nobody asks."""
        return {"client_losses": self._heard} if self._heard is not None else {}

    def choose(self, round: int, count: int, there: np.ndarray | None = None) -> list[int]:
        """The clients of a round, ascending.

        Args:
            round: The round.
            count: How many.
            there: Those who can be asked, ascending; None for all.

        Raises:
            RunFailure: The plugin chose clients that there are not, or one twice.
        """
        clients = self._everyone if there is None else _fixed(there)
        place = f"select of selection/{self._choice.name}, round {round}"
        with at_most(self._plan.settings.job_limit, place), naming(place):
            found = self._choice.call(
                "select",
                round=round,
                count=min(count, len(clients)),
                clients=clients,
                sizes=self._sizes,
                losses=_fixed(self._losses),
                generator=numpy_stream(self._seed, "participants", round),
            )
            return _checked(found, clients)


def _fixed(values: np.ndarray) -> np.ndarray:
    """Values that a plugin can't change."""
    view: np.ndarray = values.view()
    view.setflags(write=False)
    return view


def _checked(found: Any, clients: np.ndarray) -> list[int]:  # noqa: ANN401 - it may be anything
    """What a plugin chose, ascending.

    Raises:
        RunFailure: These are not some of the clients, each once.
    """
    chosen = np.asarray(found)
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
            f"it returns client {strange[0]}, who can't be asked",
            f"{len(clients)} clients can: {', '.join(map(str, clients[:8]))}"
            f"{', …' if len(clients) > 8 else ''}",
            "return some of clients",
        )
    return sorted(chosen.astype(int).tolist())

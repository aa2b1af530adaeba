"""Which clients an engine trains together."""

from __future__ import annotations

from protofl.errors import RunFailure
from protofl.hooks.plugin.members import Choice


def trains_groups(engine: Choice) -> bool:
    """Whether an engine trains several clients at once."""
    return "train_group" in engine.hooks


def chunks(engine: Choice, architectures: list[str]) -> list[list[int]]:
    """The positions of clients to train together.

    Raises:
        RunFailure: The engine left one out, or named it twice.
    """
    found = engine.call("choose_groups", architectures=architectures)
    if sorted(place for places in found or [] for place in places) != [*range(len(architectures))]:
        raise RunFailure(
            f"engine {engine.name!r}: choose_groups must name every client once",
            f"it returned {found!r} for {len(architectures)} clients",
        )
    return [list(places) for places in found]

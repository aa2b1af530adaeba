"""Clients that join later (`--join-round`), and unseen clients that never train (`--unseen`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np

from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.system.options.parsing import JOINS
from protofl.system.randomness import numpy_stream

NEVER = int(np.iinfo(np.int64).max)
"""The round in which unseen clients come."""


def joins_of(text: str | None) -> list[tuple[int, float]]:
    """Return the rounds and shares of a text from `protofl.system.options.parsing.read_joins`."""
    pairs = [item.split(":") for item in (text or "").split(",") if item]
    return [(int(round), _number(share)) for round, share in pairs]


def _number(share: str) -> float:
    above, _, below = share.partition("/")
    return float(above) / float(below or 1)


def count_unseen(clients: int, unseen: float) -> int:
    """Return how many of M clients are unseen.

    Args:
        clients: Clients M.
        unseen: A share below 1, of which there is one client at least; from 1 on a number.

    Raises:
        UsageError: It is not a whole number, or no client is left to train.
    """
    if not unseen:
        return 0
    count = max(1, round(unseen * clients)) if unseen < 1 else int(unseen)
    if unseen >= 1 and count != unseen:
        raise UsageError(f"--unseen {unseen:g} clients", do="give a share below 1, or a number")
    if count >= clients:
        raise UsageError(
            f"--unseen {unseen:g} of {clients} clients leaves no client to train",
            do="take a smaller share, or more clients",
        )
    return count


@lru_cache
def unseen_clients(
    seed: int, clients: int, unseen: float, untrained: tuple[int, ...] = ()
) -> frozenset[int]:
    """Return the unseen clients: those without training samples, and others that the seed draws.

    Args:
        seed: The trial's seed.
        clients: Clients M.
        unseen: As `count_unseen` takes it.
        untrained: Clients without training samples, see `check_untrained`.
    """
    count = count_unseen(clients, unseen)
    if not count:
        return frozenset()
    others = np.setdiff1d(np.arange(clients), untrained)
    drawn = numpy_stream(seed, "unseen").choice(others, count - len(untrained), replace=False)
    return frozenset((*untrained, *drawn.tolist()))


def check_untrained(split: Split, unseen: float, names: Collection[str] = ()) -> None:
    """Check that clients without training samples are among the unseen ones.

    Args:
        split: The split.
        unseen: As `count_unseen` takes it.
        names: Names of the clients; empty if they have none.

    Raises:
        UsageError: They are not, or no client has training samples.
    """
    untrained, clients = split.untrained, split.num_clients
    if len(untrained) == clients:
        raise UsageError(
            "no client has training samples",
            f"{clients} clients have test samples alone",
            "give clients training samples",
        )
    if len(untrained) <= count_unseen(clients, unseen):
        return
    named = [*names] or [*range(clients)]
    shown = ", ".join(str(named[client]) for client in untrained[:8])
    more = f" and {len(untrained) - 8} more" if len(untrained) > 8 else ""
    raise UsageError(
        f"{len(untrained)} of {clients} clients have test samples and no training samples: "
        f"{shown}{more}",
        "such clients can only be tested",
        f"--unseen {len(untrained)} tests them as unseen clients; or leave their samples out",
    )


def check_arrivals(settings: Any, rounds: int) -> None:  # noqa: ANN401 - the options of a run
    """Check the options about joining and unseen clients.

    Args:
        settings: The options, with ``clients``, ``unseen``, ``fine_tune``, ``join_round`` and
            ``malicious``.
        rounds: Rounds of the run.

    Raises:
        UsageError: It does not.
    """
    seen = settings.clients - count_unseen(settings.clients, settings.unseen)
    if settings.unseen and settings.malicious:
        raise UsageError(
            "--unseen with --malicious: a malicious client that never sends is not one",
            do="leave one of them out",
        )
    joins = joins_of(settings.join_round)
    for number, share in joins:
        if not 1 < number <= rounds:
            raise UsageError(
                f"--join-round {number} is not a later round of this run",
                f"it has rounds 1 to {rounds}",
                f"take one from 2 to {rounds}" if rounds > 1 else "take more --rounds",
            )
        if not 0 < share < 1:
            raise UsageError(f"--join-round {number}:{share:g}: no share of the clients", do=JOINS)
    if joins and sum(_counts(joins, seen)) >= seen:
        raise UsageError(
            f"--join-round {settings.join_round}: no client is left for the first rounds",
            f"{seen} clients train, and {sum(_counts(joins, seen))} are to come later",
            "take smaller shares",
        )


def _counts(joins: list[tuple[int, float]], seen: int) -> list[int]:
    """Return the number of clients that join in each round: at least one."""
    return [max(1, round(share * seen)) for _, share in joins]


def first_rounds(
    seed: int,
    clients: int,
    unseen: float,
    join_round: str | None,
    untrained: tuple[int, ...] = (),
) -> np.ndarray:
    """Return the first round [M] int64, from 0, of each client; `NEVER` if it is unseen.

    Args:
        seed: The trial's seed, which alone draws who comes when.
        clients: Clients M.
        unseen: As `count_unseen` takes it.
        join_round: As `protofl.system.options.parsing.read_joins` returned it.
        untrained: Clients without training samples, which are unseen.
    """
    result = np.zeros(clients, dtype=np.int64)
    never = unseen_clients(seed, clients, unseen, untrained)
    result[[*never]] = NEVER
    joins = joins_of(join_round)
    if joins:
        seen = numpy_stream(seed, "join").permutation(np.flatnonzero(result == 0))
        counts = _counts(joins, len(seen))
        rounds = np.repeat([number - 1 for number, _ in joins], counts)
        result[seen[: len(rounds)]] = rounds
    return result

"""Availability: clients come and go, drawn in every slot of virtual time."""

from __future__ import annotations

import math

import numpy as np

import protofl as pf

AHEAD = 1000
"""Slots into which one looks ahead for the next change."""


class ComingAndGoing(pf.Config):
    """Options of device models in which clients come and go at random."""

    available: float = pf.Field(
        1.0,
        gt=0,
        le=1,
        description="share of clients that are there at any time; 1: everybody always is",
    )
    slot: float = pf.Field(
        3600.0,
        ge=1e-6,
        le=1e9,
        description="seconds of a slot, in which a client is there or away; short: it leaves often",
    )


def comings_and_goings(
    num_clients: int, seconds: float, seed: int, config: ComingAndGoing
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return who is available until when: in each slot every client with probability ``available``.

    Args:
        num_clients: Clients M.
        seconds: The moment.
        seed: The trial's seed.
        config: The options.

    Returns:
        [M] bool, and [M] float: the end of the last slot for which this stays so; after `AHEAD`
        slots at the latest. None where everybody always is there.
    """
    if config.available == 1:
        return None
    first = math.floor(seconds / config.slot)
    if (first + 1) * config.slot <= seconds:  # rounded down: the slot's end has come
        first += 1

    def drawn(slot: int) -> np.ndarray:
        there: np.ndarray = pf.numpy_stream(seed, "there", slot).random(num_clients)
        return there < config.available

    there = drawn(first)
    until = np.full(num_clients, (first + 1) * config.slot)
    same = np.ones(num_clients, dtype=bool)
    for slot in range(first + 1, first + AHEAD):
        same &= drawn(slot) == there
        if not same.any():
            break
        until[same] = (slot + 1) * config.slot
    return there, until

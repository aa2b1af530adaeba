"""Learning rates by round: ``--lr-schedule``, with options ``--set schedule.KEY=VALUE``.

A schedule multiplies every learning rate of a client's training by a factor, the same in all steps
of a round. The factor depends on the number of the round only, so a resumed run needs no state.
`Cosine` also depends on the number of rounds, unless ``over`` is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.system.options.plugin_options import Config, Field, option_names, parse_config


class Schedule(Config):
    """A constant rate after the rounds of a warm-up."""

    warmup: int = Field(
        0,
        ge=0,
        description="rounds w in which the rate rises in equal steps: round t < w has "
        "(t + 1)/(w + 1) of it; 0 for none",
    )

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor η_t/η of a round.

        Args:
            round: The round t, from 0; before the first the factor is 1.
            rounds: Rounds T of the run.
        """
        if round < 0:
            return 1.0
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        return self.decay(round - self.warmup, rounds - self.warmup)

    def decay(self, round: int, rounds: int) -> float:
        """Return the factor of a round, counted from the end of the warm-up."""
        return 1.0

    @property
    def horizon(self) -> str:
        """The option that replaces the run's number of rounds; empty if it does not matter."""
        return ""


class Step(Schedule):
    """γ^⌊t/every⌋."""

    every: int = Field(30, ge=1, description="rounds between two steps")
    factor_: float = Field(
        0.1, alias="factor", gt=0, le=1, description="γ of each step; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return γ^⌊t/every⌋."""
        return self.factor_ ** (round // self.every)


class Exponential(Schedule):
    """γ^t."""

    factor_: float = Field(
        0.99, alias="factor", gt=0, le=1, description="γ of each round; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return γ^t."""
        return self.factor_**round


class Cosine(Schedule):
    """Half a cosine from 1 to ``floor`` (Loshchilov and Hutter, SGDR, Eq. 5, without restarts)."""

    floor: float = Field(
        0.0, ge=0, le=1, description="the lowest factor; 1 leaves the rate as it is"
    )
    over: int | None = Field(
        None,
        ge=1,
        description="rounds over which it falls, including the warm-up; later rounds have the "
        "lowest factor. None: the rounds of the run, which then can't be extended",
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return floor + (1 − floor)·(1 + cos(πt/T))/2."""
        whole = rounds if self.over is None else self.over - self.warmup
        share = min(1.0, round / max(whole, 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2

    @property
    def horizon(self) -> str:
        """``schedule.over`` if it is not given."""
        return "schedule.over" if self.over is None else ""


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Schedule,
    "step": Step,
    "cosine": Cosine,
    "exponential": Exponential,
}
"""{name in ``--lr-schedule``: its options and its formula}."""


def schedule_of(name: str, options: Mapping[str, Any]) -> Schedule:
    """Return a schedule with its options.

    Raises:
        UsageError: An option is unknown or out of its range.
    """
    kind = SCHEDULES[name]
    try:
        found = parse_config(kind, dict(options), "schedule")
    except UsageError as error:
        error.do = f"--lr-schedule {name} has: {', '.join(option_names(kind))}"
        raise
    assert isinstance(found, Schedule)
    return found

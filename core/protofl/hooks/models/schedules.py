"""Learning rates by round: ``--lr-schedule``, with options ``--set schedule.KEY=VALUE``.

A schedule is a factor of every learning rate of a client's training, the same in all steps of a
round. It depends on the round's number only, so a run that is resumed needs no state of it.
`Cosine` also depends on the number of rounds, unless ``over`` is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.system.options.plugin_options import Config, Field, option_names, parse_config


class Schedule(Config):
    """A constant rate, behind the rounds of a warm-up."""

    warmup: int = Field(
        0,
        ge=0,
        description="rounds w in which the rate rises in equal steps: round t < w has "
        "(t + 1)/(w + 1) of it; 0 for none",
    )

    def factor(self, round: int, rounds: int) -> float:
        """The factor η_t/η of a round.

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
        """The factor of a round that is counted from the warm-up's end."""
        return 1.0

    @property
    def horizon(self) -> str:
        """The option that would free it of the run's number of rounds; empty where it is free."""
        return ""


class Step(Schedule):
    """γ^⌊t/every⌋."""

    every: int = Field(30, ge=1, description="rounds between two steps")
    factor_: float = Field(
        0.1, alias="factor", gt=0, le=1, description="γ of each step; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """γ^⌊t/every⌋."""
        return self.factor_ ** (round // self.every)


class Exponential(Schedule):
    """γ^t."""

    factor_: float = Field(
        0.99, alias="factor", gt=0, le=1, description="γ of each round; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """γ^t."""
        return self.factor_**round


class Cosine(Schedule):
    """Half a cosine from 1 to ``floor`` (Loshchilov and Hutter, SGDR, Eq. 5, without restarts)."""

    floor: float = Field(
        0.0, ge=0, le=1, description="the lowest factor; 1 leaves the rate as it is"
    )
    over: int | None = Field(
        None,
        ge=1,
        description="rounds over which it falls, those of the warm-up included; later ones have "
        "the lowest. None: those of the run, which then can't be continued with more rounds",
    )

    def decay(self, round: int, rounds: int) -> float:
        """Floor + (1 − floor)·(1 + cos(πt/T))/2."""
        whole = rounds if self.over is None else self.over - self.warmup
        share = min(1.0, round / max(whole, 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2

    @property
    def horizon(self) -> str:
        """``over``, where it is not given."""
        return "schedule.over" if self.over is None else ""


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Schedule,
    "step": Step,
    "cosine": Cosine,
    "exponential": Exponential,
}
"""{name in ``--lr-schedule``: its options and its formula}."""


def schedule_of(name: str, options: Mapping[str, Any]) -> Schedule:
    """A schedule with its options.

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

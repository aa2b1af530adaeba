"""Optimisers and learning rates by round: ``--optimizer`` and ``--lr-schedule``, with options.

Names are those of `torch.optim`, in any case. ``--momentum`` concerns SGD only, as data sets have
defaults for it; other optimisers take their momentum as an option.

A schedule multiplies every learning rate of a client's training by a factor, the same in all steps
of a round. The factor depends on the number of the round only, so a resumed run needs no state.
`Cosine` also depends on the number of rounds, unless ``over`` is given.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from protofl.errors import UsageError, unknown
from protofl.system.options.plugin_options import Config, Field, option_names, parse_config
from protofl.system.options.table import UPDATES

PLAIN = ("sgd", "adam")
"""Optimisers that engines compute themselves if they have no further options."""


OURS = {"lr": "--lr", "weight_decay": "--weight-decay", "params": "", "momentum": "--momentum"}
"""Arguments of an optimiser that are options of a run."""


Groups = Sequence[tuple[Sequence[nn.Parameter], float]]


def optimizer_kind(name: str) -> type[Optimizer]:
    """Return the optimiser of a name.

    Raises:
        UsageError: The name is unknown.
    """
    kinds = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    if name.lower() not in kinds:
        raise unknown("optimizer", name, kinds, "--optimizer takes the optimisers of torch.optim")
    return kinds[name.lower()]


def make_optimizer(
    name: str,
    groups: Groups,
    momentum: float,
    weight_decay: float | None,
    options: Mapping[str, Any],
) -> Optimizer:
    """Create an optimiser.

    Args:
        name: Its name.
        groups: Parameters with a learning rate for each group.
        momentum: Momentum of SGD; other optimisers ignore it.
        weight_decay: Weight decay; None for the optimiser's default.
        options: Further arguments.
    """
    kind: Any = optimizer_kind(name)
    base_options = {"momentum": momentum} if kind is torch.optim.SGD else {}
    base_options |= {} if weight_decay is None else {"weight_decay": weight_decay}
    parts = [{"params": list(parameters), "lr": lr} for parameters, lr in groups]
    result: Optimizer = kind(parts, **(base_options | dict(options)))
    return result


def optimizer_options(
    name: str, options: Mapping[str, Any], momentum: float, weight_decay: float | None
) -> dict[str, Any]:
    """Return the options of an optimiser, converted from strings.

    Args:
        name: Its name.
        options: The options as typed.
        momentum: Momentum of SGD.
        weight_decay: Weight decay; None for the optimiser's default.

    Raises:
        UsageError: The optimiser or an option is unknown or out of its range, or the optimiser
            can't train nets a step at a time (L-BFGS, sparse Adam).
    """
    if name in PLAIN and not options:
        return {}
    kind = optimizer_kind(name)
    known = {*inspect.signature(kind).parameters}
    values = {}
    for key, value in options.items():
        if key in OURS and (key != "momentum" or kind is torch.optim.SGD):
            do = f"write {OURS[key]}" if OURS[key] else "leave it out"
            raise UsageError(f"--set optimizer.{key}={value} is an option of the run", do=do)
        if key not in known:
            raise unknown(f"option of optimizer {name}", key, known - OURS.keys())
        values[key] = _value(value)
    if weight_decay is not None and "weight_decay" not in known:
        raise UsageError(f"--weight-decay: {name} has none", do="leave it out, or take sgd")
    _try(name, momentum, weight_decay, values)
    return values


def _value(text: Any) -> Any:  # noqa: ANN401 - an option of any type
    """Convert a string of the command line to a number, boolean, tuple or None."""
    if not isinstance(text, str):
        return text
    constants = {"none": None, "true": True, "false": False}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _try(
    name: str, momentum: float, weight_decay: float | None, options: Mapping[str, Any]
) -> None:
    """Make a step on a weight and a bias, to find invalid options early."""
    trial = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
    for parameter in trial:
        parameter.grad = torch.ones_like(parameter)
    try:
        make_optimizer(name, [(trial, 0.01)], momentum, weight_decay, options).step()
    except Exception as error:
        what = " ".join(f"{key}={value!r}" for key, value in options.items())
        raise UsageError(
            f"--optimizer {name} cannot train a client's net{f' with {what}' if what else ''}",
            str(error).partition("\n")[0],
            "take another, or other options",
        ) from None


def training_options(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the further options of the optimiser and of the schedule, with their defaults.

    Args:
        settings: The options of a run.

    Raises:
        UsageError: The optimiser or an option is unknown, or an option is out of its range.
    """
    optimizer, schedule = (settings["options"].get(owner, {}) for owner in UPDATES)
    lr_schedule = schedule_of(settings["lr_schedule"], schedule)
    rules = settings["momentum"], settings["weight_decay"]
    return {
        "optimizer": optimizer_options(settings["optimizer"], optimizer, *rules),
        "schedule": {}
        if lr_schedule == LearningRateSchedule()
        else lr_schedule.model_dump(mode="json", by_alias=True),
    }


class LearningRateSchedule(Config):
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


class Step(LearningRateSchedule):
    """γ^⌊t/every⌋."""

    every: int = Field(30, ge=1, description="rounds between two steps")
    factor_: float = Field(
        0.1, alias="factor", gt=0, le=1, description="γ of each step; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return γ^⌊t/every⌋."""
        return self.factor_ ** (round // self.every)


class Exponential(LearningRateSchedule):
    """γ^t."""

    factor_: float = Field(
        0.99, alias="factor", gt=0, le=1, description="γ of each round; 1 leaves the rate as it is"
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return γ^t."""
        return self.factor_**round


class Cosine(LearningRateSchedule):
    """Half a cosine from 1 to ``floor`` (Loshchilov and Hutter, SGDR, Eq. 5, without restarts)."""

    floor: float = Field(
        0.0, ge=0, le=1, description="the lowest factor; 1 leaves the rate as it is"
    )
    over: int | None = Field(
        None,
        ge=1,
        description="rounds over which it falls, including the warm-up; later rounds have the "
        "lowest factor. None: the rounds of the run, which then cannot be extended",
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


SCHEDULES: dict[str, type[LearningRateSchedule]] = {
    "constant": LearningRateSchedule,
    "step": Step,
    "cosine": Cosine,
    "exponential": Exponential,
}
"""{name in ``--lr-schedule``: its options and its formula}."""


def schedule_of(name: str, options: Mapping[str, Any]) -> LearningRateSchedule:
    """Return a schedule with its options.

    Raises:
        UsageError: An option is unknown or out of its range.
    """
    kind = SCHEDULES[name]
    try:
        result = parse_config(kind, dict(options), "schedule")
    except UsageError as error:
        error.do = f"--lr-schedule {name} has: {', '.join(option_names(kind))}"
        raise
    assert isinstance(result, LearningRateSchedule)
    return result

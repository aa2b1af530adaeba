"""Candidates of the search of a benchmark: learning rates, and the main weight of a method.

Every method has the same number of candidates in a setting, and they are scored by validation
accuracy alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protofl.errors import unknown
from protofl.records.row import Row
from protofl.system.options.plugin_options import Config, option_names
from protofl_workbench.reproductions.reproduction import Tuning


@dataclass(frozen=True)
class Weight:
    """The main weight of a method.

    Attributes:
        name: Name of the option.
        value: The value that the factors of the search multiply: the method's default.
    """

    name: str
    value: float


@dataclass(frozen=True)
class Candidate:
    """A point of the search.

    Attributes:
        rate: Learning rate of the clients.
        weight: Value of the main weight; None for the method's own.
    """

    rate: float
    weight: float | None = None

    def options(self, weight: Weight | None) -> dict[str, Any]:
        """Return the options of a run, in addition to those of the setting."""
        options: dict[str, Any] = {"lr": self.rate}
        if weight is not None and self.weight is not None:
            options["set"] = {weight.name: self.weight}
        return options


def weight_of(config: type[Config], stated: Mapping[str, float] | None, row: str) -> Weight | None:
    """Return the main weight of a method; None if it has none.

    Without a statement it is the first number of the method's options that is positive by default,
    may be 0, and has no upper bound. The weights of loss terms are declared so ("0 regresses to
    local training"); learning rates may not be 0.

    Args:
        config: The options of the method.
        stated: {option: value} of the benchmark; empty for none, None if nothing is stated.
        row: The row, for errors.

    Raises:
        UsageError: The method has no such option.
    """
    names = option_names(config)
    if stated is not None:
        for name, value in stated.items():
            if name not in names:
                raise unknown(f"weight of {row} in [tuning.weights]", name, names)
            return Weight(name, value)
        return None
    for name, attribute in names.items():
        field = config.model_fields[attribute]
        bounds = {type(bound).__name__ for bound in field.metadata}
        is_number = field.annotation is float and isinstance(field.default, (int, float))
        if is_number and field.default > 0 and bounds == {"Ge"}:
            return Weight(name, float(field.default))
    return None


def first_step(tuning: Tuning) -> list[Candidate]:
    """Return the candidates of the first step: the learning rates."""
    return [Candidate(rate) for rate in tuning.rates]


def second_step(tuning: Tuning, weight: Weight | None, best: Candidate) -> list[Candidate]:
    """Return the candidates of the second step: other weights, or without one other rates."""
    if weight is None:
        return [Candidate(_rounded(best.rate * factor)) for factor in tuning.rate_factors]
    return [Candidate(best.rate, _rounded(weight.value * factor)) for factor in tuning.factors]


def _rounded(value: float) -> float:
    """Return a number of three digits, so that it is printed as it is used."""
    return float(f"{value:.3g}")


def validation_score(rows: Sequence[Row]) -> float:
    """Return the score of a tuning run: its best validation accuracy; −∞ if there is none.

    No other number of the record is read.
    """
    found = [
        row["validation_accuracy"] for row in rows if row.get("validation_accuracy") is not None
    ]
    return max((a for a in found if not math.isnan(a)), default=-math.inf)


def best_candidate(scores: Mapping[Candidate, float]) -> Candidate | None:
    """Return the first candidate with the best score; None if no candidate has one."""
    best = max(scores.values(), default=-math.inf)
    if best == -math.inf:
        return None
    return next(candidate for candidate, score in scores.items() if score == best)

"""The search of a benchmark: learning rates, then the main weight of a method.

Every method tries the same learning rates, and further ones until the best lies inside of those
that were tried. Candidates are compared by validation accuracy alone.
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
        may_be_zero: Whether the method takes 0.
    """

    name: str
    value: float
    may_be_zero: bool = True


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
            limits = config.model_fields[names[name]].metadata
            return Weight(name, value, not any(type(limit).__name__ == "Gt" for limit in limits))
        return None
    for name, attribute in names.items():
        field = config.model_fields[attribute]
        bounds = {type(bound).__name__ for bound in field.metadata}
        is_number = field.annotation is float and isinstance(field.default, (int, float))
        if is_number and field.default > 0 and bounds == {"Ge"}:
            return Weight(name, float(field.default))
    return None


def next_candidates(
    tuning: Tuning, weight: Weight | None, scores: Mapping[Candidate, float]
) -> list[Candidate]:
    """Return the candidates to try next; an empty list ends the search.

    Args:
        tuning: The search.
        weight: The main weight; None if the method has none.
        scores: {candidate: score} of all candidates so far.
    """
    by_rate = {c.rate: score for c, score in scores.items() if c.weight is None}
    if not by_rate:
        return [Candidate(rate) for rate in tuning.rates]
    beyond = _beyond(by_rate, tuning, len(tuning.rates), down=True)
    if beyond is not None:
        return [Candidate(beyond)]
    rate = max(by_rate, key=by_rate.__getitem__)
    if weight is None or not tuning.factors or by_rate[rate] == -math.inf:
        return []
    by_weight = {c.weight: s for c, s in scores.items() if c.weight is not None}
    factors = [factor for factor in tuning.factors if factor or weight.may_be_zero]
    if not by_weight:
        return [Candidate(rate, _rounded(weight.value * factor)) for factor in factors]
    every = {weight.value: by_rate[rate], **by_weight}
    beyond = _beyond(every, tuning, len(factors) + 1, down=False)
    return [] if beyond is None else [Candidate(rate, beyond)]


def _beyond(
    scores: Mapping[float, float], tuning: Tuning, planned: int, *, down: bool
) -> float | None:
    """Return the value beyond the edge at which the best one lies; None if it lies inside.

    If all values diverged, the smallest counts as the best.
    """
    low, high = min(scores), max(scores)
    best = max(scores.values())
    if len(scores) - planned >= tuning.steps:
        return None
    if down and scores[low] == best:
        return _rounded(low / tuning.step)
    return _rounded(high * tuning.step) if scores[high] == best > -math.inf else None


def _rounded(value: float) -> float:
    """Return a number of three digits, so that it is printed as it is used."""
    return float(f"{value:.3g}")


def validation_score(rows: Sequence[Row]) -> float:
    """Return the score of a tuning run: its best validation accuracy; −∞ if there is none.

    Of a run that fine-tunes clients at the end, it is that after fine-tuning.
    """
    tuned = rows[-1].get("fine_tuned_validation_accuracy") if rows else None
    found = [row.get("validation_accuracy") for row in rows] if tuned is None else [tuned]
    return max((a for a in found if a is not None and not math.isnan(a)), default=-math.inf)


def best_candidate(scores: Mapping[Candidate, float]) -> Candidate | None:
    """Return the first candidate with the best score; None if no candidate has one."""
    best = max(scores.values(), default=-math.inf)
    if best == -math.inf:
        return None
    return next(candidate for candidate, score in scores.items() if score == best)

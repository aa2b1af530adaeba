"""Axes as a search has them: Optuna's distributions, the points that it chooses, the ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofl_workbench.sweeps.axes import Axis, Point

if TYPE_CHECKING:
    from optuna.trial import Trial


def ends_of(axes: list[Axis]) -> list[Point]:
    """Points by which a search is tried beforehand: every value, and both ends of every range."""
    first = {axis.key: axis.ends[0] for axis in axes}
    others = [{**first, axis.key: value} for axis in axes for value in axis.ends[1:]]
    return [first, *others]


def distribution_of(known: Any, axis: Axis) -> Any:  # noqa: ANN401 - Optuna's
    """What Optuna calls an axis; ``known`` are its distributions."""
    if axis.values:
        return known.CategoricalDistribution(axis.values)
    kind = known.IntDistribution if axis.whole else known.FloatDistribution
    return kind(axis.low, axis.high, log=axis.log)


def suggested(trial: Trial, axis: Axis) -> Any:  # noqa: ANN401 - options are of many types
    """The value that Optuna chooses."""
    if axis.values:
        return trial.suggest_categorical(axis.key, list(axis.values))
    if axis.whole:
        trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log)
    else:
        trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log)
    return point_value(axis, trial.params)


def point_value(axis: Axis, params: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """The value of a point: of a range of real numbers no more than six digits."""
    value = params[axis.key]
    if axis.values or axis.whole:
        return value
    return min(max(float(f"{value:.6g}"), axis.low), axis.high)

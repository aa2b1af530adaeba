"""Points of a sweep: of a grid, or chosen by a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from protofl.runs.request.plugin_names import name_plugins
from protofl.runs.request.request import Request
from protofl.system.options.parsing import merge_options
from protofl.system.options.table import CHOOSING
from protofl_workbench.sweeps.axes import Axis, Point

if TYPE_CHECKING:
    from optuna.trial import Trial


def points_of(axes: Iterable[Axis]) -> list[Point]:
    """Return all points of a grid; the last axis varies fastest."""
    axes = [*axes]
    return [
        dict(zip([axis.key for axis in axes], values, strict=True))
        for values in product(*(axis.values for axis in axes))
    ]


def number_of_points(axes: Iterable[Axis]) -> int:
    """Return the number of points of a grid."""
    return math.prod(len(axis.values) for axis in axes)


def request_at(base: Request, axes: Iterable[Axis], point: Point, seed: int) -> Request:
    """Return the request of a point, with one trial.

    Args:
        base: Options of all runs.
        axes: Axes from `resolved_axes`.
        point: The point.
        seed: Seed of the run.
    """
    options = dict(base.options)
    for axis in axes:
        value = point[axis.key]
        if axis.owner:
            options = merge_options(options, {"options": {axis.owner: {axis.option: value}}})
        elif axis.option in ("method", *CHOOSING):
            options = merge_options(options, name_plugins({axis.option: value})[0])
        else:
            options[axis.option] = value
    return base.with_options({**options, "seed": seed, "trials": 1}, out=None)


def point_name(point: Point) -> str:
    """Return a point as text: ``tau=10 lr=0.1``."""
    return " ".join(f"{key}={shown(value)}" for key, value in point.items())


def shown(value: Any) -> str:  # noqa: ANN401 - options are of many types
    """Return a value as text."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def end_points(axes: list[Axis]) -> list[Point]:
    """Return points that check a search beforehand: every value, and both ends of every range."""
    first = {axis.key: axis.ends[0] for axis in axes}
    others = [{**first, axis.key: value} for axis in axes for value in axis.ends[1:]]
    return [first, *others]


def distribution_of(known: Any, axis: Axis) -> Any:  # noqa: ANN401 - Optuna's
    """Return the Optuna distribution of an axis; ``known`` is its module."""
    if axis.values:
        return known.CategoricalDistribution(axis.values)
    kind = known.IntDistribution if axis.is_integer else known.FloatDistribution
    return kind(axis.low, axis.high, log=axis.log)


def suggest_value(trial: Trial, axis: Axis) -> Any:  # noqa: ANN401 - options are of many types
    """Return the value that Optuna suggests."""
    if axis.values:
        return trial.suggest_categorical(axis.key, list(axis.values))
    if axis.is_integer:
        trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log)
    else:
        trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log)
    return point_value(axis, trial.params)


def point_value(axis: Axis, params: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the value of a point; numbers of a range are rounded to six digits."""
    value = params[axis.key]
    if axis.values or axis.is_integer:
        return value
    return min(max(float(f"{value:.6g}"), axis.low), axis.high)

"""Points of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any

from protofl.runs.request.program_classes import name_plugins
from protofl.runs.request.request import Request
from protofl.system.options.parsing import merge_options
from protofl.system.options.table import CHOOSING
from protofl_workbench.sweeps.axes import Axis, Point


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

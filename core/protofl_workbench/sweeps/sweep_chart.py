"""Picture of a sweep: the figure of its points over an option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from protofl.errors import UsageError, unknown
from protofl_workbench.plots.style import INK, Style, StyleOptions, line_style
from protofl_workbench.sweeps.sweep_points import shown
from protofl_workbench.sweeps.sweep_results import PointResult, SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RINGS = {"best": 130, "tie": 60}
"""Areas of the marks around points, in square points."""


def sweep_chart(result: SweepResult, x: str = "", **style: Unpack[StyleOptions]) -> Figure:
    """Draw the figure of each point over an option.

    Args:
        result: The result of a sweep (`protofl.sweep`, or `load_results`).
        x: Key of the option on the x axis; default: the one with the most values. The other
            options make a curve for each combination.
        **style: ``width``: ``column`` (3.3 in), ``page`` (6.9 in) or inches; ``font``: ``serif`` or
            ``sans``.

    Returns:
        A matplotlib figure: means ± the population standard deviation over trials. If points tie
        with the best (`SweepResult.ties`), the best has a star and they have rings. Numbers are on
        a linear axis, or on a logarithmic one if the largest is ten times the smallest; other
        values stand side by side.

    Raises:
        UsageError: No point is finished, or the sweep has no such option.
    """
    lines = [line for line in result.lines if line.values("value")]
    if not lines:
        raise UsageError(
            "no point of the sweep has a figure", do="finish it: protofl sweep --resume"
        )
    keys = list(lines[0].point)
    if x and x not in keys:
        raise unknown("option of the sweep", x, keys)
    across = x or max(keys, key=lambda key: len({str(line.point[key]) for line in lines}))
    curves: dict[str, list[PointResult]] = {}
    for line in lines:
        rest = [f"{key}={shown(line.point[key])}" for key in keys if key != across]
        curves.setdefault(", ".join(rest), []).append(line)
    labels = sorted(curves) if len(curves) > 1 else []
    look = Style(**style)
    curve_labels = sorted(curves) if len(curves) > 1 else []
    marked = {"best": [result.best] if result.best else [], "tie": result.ties}
    marks = [name for name, points in marked.items() if points and result.ties]
    labels = [*curve_labels, *marks]
    made, axes = look.canvas(look.height, labels)
    place = _places(axes, [line.point[across] for line in lines])
    handles = [
        _draw(axes, number, curves[label], across, place)
        for number, label in enumerate(curve_labels or curves)
    ]
    rings = [
        axes.scatter(
            [place[str(line.point[across])] for line in marked[name]],
            [100 * (line.mean("value") or 0.0) for line in marked[name]],
            s=RINGS[name],
            facecolors="none",
            edgecolors=INK,
            linewidths=0.8,
            zorder=3,
            marker="*" if name == "best" else "o",
        )
        for name in marks
    ]
    axes.set_xlabel(across)
    chosen = f"{result.chosen_on} accuracy"
    axes.set_ylabel(f"{chosen} (%)" + (f",\n{result.samples}" if result.samples else ""))
    if labels:
        look.legend(made, [*(handles if curve_labels else []), *rings], labels)
    return made


def _places(axes: Axes, values: Sequence[Any]) -> dict[str, float]:
    """Return the place of each value on the x axis, and set the scale of the axis."""
    texts = list(dict.fromkeys(map(str, values)))
    numbers = [_number(text) for text in texts]
    known = sorted(number for number in numbers if number is not None)
    if len(known) < len(texts):
        axes.set_xticks(range(len(texts)), texts, parse_math=False)
        axes.set_xlim(-0.5, len(texts) - 0.5)
        return {text: float(place) for place, text in enumerate(texts)}
    if known[0] > 0 and known[-1] / known[0] >= 10:
        axes.set_xscale("log")
    return dict(zip(texts, (float(number or 0.0) for number in numbers), strict=True))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _draw(
    axes: Axes, number: int, lines: Sequence[PointResult], across: str, place: dict[str, float]
) -> Any:  # noqa: ANN401 - a handle of a legend
    """Draw one curve with its deviations; return its line."""
    points = sorted(
        (place[str(line.point[across])], line.mean("value") or 0.0, line.std("value") or 0.0)
        for line in lines
    )
    x, means, deviations = zip(*points, strict=True)
    style = line_style(number)
    return axes.errorbar(
        x,
        [100 * mean for mean in means],
        yerr=[100 * std for std in deviations] if any(deviations) else None,
        capsize=1.5,
        elinewidth=0.7,
        capthick=0.7,
        **style,
    )

"""A figure of each group as a bar, with the deviation over its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from protofl.comparing.groups import Group, Runs
from protofl.comparing.selection import reading
from protofl.plots.curves import groups_in
from protofl.plots.style import (
    INK,
    SMALL,
    bar_names,
    bar_style,
    canvas,
    legend,
    name_bars,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bars(
    runs: Runs | Sequence[Group],
    figure: str = "final",
    *,
    by: str | Sequence[str] = (),
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw a figure of each group as a bar: the mean of its trials ± their (population) deviation.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        figure: ``final``, ``best``, ``validation``: the test accuracy then; ``worst``, ``loss``, …
            in the last round, or ``FIGURE@best``.
        by: Options by which runs are grouped; what differs between them where none is given.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: A run has no such figure.
    """
    wanted = reading(figure)
    scale = wanted.about.scale
    found = {}
    for group in groups_in(runs, by):
        values = np.array([wanted.of(trial) for trial in group.trials if trial.rows]) * scale
        found[group.label] = (float(values.mean()), float(values.std()))
    return bar_chart({"": found}, wanted.title, width=width, font=font)


def bar_chart(
    series: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
    *,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw bars of numbers that are known: rows beside each other in every category.

    Args:
        series: {series: {category: (mean, deviation)}}, NaN for none; a category that a series
            lacks is left empty. Of several series each has a colour and a hatch in a legend.
        title: What the numbers are, for the axis.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Returns:
        Bars that lie, with their numbers, so that names of any length can be read.
    """
    categories = list(dict.fromkeys(name for own in series.values() for name in own))
    several = len(series) > 1
    thick = 0.8 / len(series)
    names, inches = bar_names(categories, width)
    inches = max(inches, 0.16 * len(categories) * len(series) + 0.1)
    made, axes = canvas(width, inches + 0.45, font, list(series) if several else [])
    handles, numbers = [], []
    for number, own in enumerate(series.values()):
        places = [n + (number - (len(series) - 1) / 2) * thick for n in range(len(categories))]
        there = [(p, own[name]) for p, name in zip(places, categories, strict=True) if name in own]
        there = [(place, spread) for place, spread in there if not math.isnan(spread[0])]
        y, spreads = [place for place, _ in there], [spread for _, spread in there]
        means = [mean for mean, _ in spreads]
        errors = [0.0 if math.isnan(std) else std for _, std in spreads]
        handles.append(
            axes.barh(y, means, height=thick * 0.9, **bar_style(number if several else 0))
        )
        axes.errorbar(
            means, y, xerr=errors, fmt="none", ecolor=INK, elinewidth=0.7, capsize=1.5, capthick=0.7
        )
        numbers += [(m + e, p, _number(m)) for m, e, p in zip(means, errors, y, strict=True)]
    _room_at_the_right(axes)
    for right, place, text in numbers:
        axes.annotate(
            text, (right, place), (3, 0), textcoords="offset points", va="center_baseline",
            **words(font, SMALL - 0.5),
        )  # fmt: skip
    name_bars(axes, names)
    axes.set_xlabel(title)
    if several:
        legend(made, handles, list(series), font)
    return made


def _room_at_the_right(axes: Axes) -> None:
    """Room for numbers behind bars, which begin at zero, as their lengths are compared."""
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.0), right + 0.12 * (right - min(left, 0.0)))


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"

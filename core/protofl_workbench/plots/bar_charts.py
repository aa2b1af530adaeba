"""Bars: a figure of each group, the bytes and the seconds of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofl.records.folder.row import Row
from protofl.system.files.tables import finite
from protofl_workbench.comparing.groups import Group, Runs
from protofl_workbench.comparing.selection import reading
from protofl_workbench.plots.curves import groups_in
from protofl_workbench.plots.style import (
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


UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))

TOOK = "the round took"


def traffic(
    runs: Runs | Sequence[Group],
    *,
    by: str | Sequence[str] = (),
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw the bytes that all clients send and receive in a round, the mean over all rounds.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        by: Options by which runs are grouped; what differs between them where none is given.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.
    """
    found = {
        group.label: {
            f"{way} by clients": _mean(group, f"{key}_bytes")
            for key, way in (("upload", "sent"), ("download", "received"))
        }
        for group in groups_in(runs, by)
    }
    largest = max(sum(own.values()) for own in found.values())
    factor, unit = next(((f, u) for f, u in UNITS if largest >= f), UNITS[-1])
    scaled = {g: {k: v / factor for k, v in own.items()} for g, own in found.items()}
    return _stacked(scaled, f"{unit} a round", width, font)


def stages(
    runs: Runs | Sequence[Group],
    *,
    by: str | Sequence[str] = (),
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw the seconds of a round by stage, the mean over all rounds.

    What hosts did side by side is summed, so a bar may be longer than the round took: that is the
    mark beside it.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        by: Options by which runs are grouped; what differs between them where none is given.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.
    """
    groups = groups_in(runs, by)
    rows = [own for g in groups for t in g.trials for own in t.each(lambda r: dict(r["seconds"]))]
    names = dict.fromkeys(name for own in rows for name in own)
    found = {
        group.label: {name: _mean(group, "seconds", name) for name in names if name != "total"}
        for group in groups
    }
    # What could hardly be seen is put together.
    whole = max(sum(own.values()) for own in found.values())
    seen = [n for n in next(iter(found.values())) if max(o[n] for o in found.values()) > whole / 60]
    shown = {group: {name: own[name] for name in seen} for group, own in found.items()}
    for group, own in found.items():
        shown[group]["other"] = sum(value for name, value in own.items() if name not in seen)
    totals = [_mean(group, "seconds", "total") for group in groups]
    return _stacked(shown, "seconds a round, summed over hosts", width, font, totals)


def _mean(group: Group, *names: str) -> float:
    """The mean of a number over all rounds of all trials; what a line hasn't is 0."""

    def read(row: Row) -> float:
        inside: Any = row
        for name in names:
            inside = inside.get(name, 0)
        return finite(float(inside)) or 0.0

    return float(np.mean([value for trial in group.trials for value in trial.each(read)]))


def _stacked(
    bars: dict[str, dict[str, float]],
    title: str,
    width: str | float,
    font: str,
    marks: Sequence[float] = (),
) -> Figure:
    """A bar for each group, its parts one behind the other, and its sum; a mark for each."""
    parts = list(next(iter(bars.values())))
    handles: list[Any] = []
    entries = [*parts, TOOK] if marks else parts
    names, inches = bar_names(list(bars), width)
    made, axes = canvas(width, inches + 0.45, font, entries)
    begun = np.zeros(len(bars))
    for number, part in enumerate(parts):
        lengths = np.array([own[part] for own in bars.values()])
        style = bar_style(number)
        handles.append(axes.barh(range(len(bars)), lengths, left=begun, height=0.66, **style))
        begun += lengths
    for place, end in enumerate(begun):
        text = f"{end:.3g}" if end else "nothing"
        axes.annotate(
            text, (end, place), (4, 0), textcoords="offset points", va="center_baseline",
            **words(font, SMALL - 0.5),
        )  # fmt: skip
    if marks:
        drawn = axes.plot(
            marks, range(len(bars)), linestyle="none", marker="|", markersize=12,
            markeredgewidth=1.4, color=INK,
        )  # fmt: skip
        handles += drawn
    axes.set_xlim(0, (max([float(begun.max()), *marks]) or 1.0) * 1.13)
    name_bars(axes, names)
    axes.set_xlabel(title)
    legend(made, handles, entries, font)
    return made

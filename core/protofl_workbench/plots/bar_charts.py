"""Bar charts: a figure of each group, and the bytes of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from protofl.records.row import Row
from protofl.system.files.tables import finite
from protofl_workbench.comparing.run_groups import Group, Runs, with_score_of
from protofl_workbench.comparing.trial_figures import trial_figure
from protofl_workbench.plots.curves import groups_in
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    Style,
    StyleOptions,
    bar_style,
    name_bars,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(
    runs: Runs | Sequence[Group],
    figure: str = "final",
    *,
    by: str | Sequence[str] = (),
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw a figure of each group: the mean of its trials ± the population standard deviation.

    Trials that are shorter than the longest of their group do not count. A group without a
    finished trial has an empty bar, and its name says how many rounds are done.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        figure: ``final``, ``best`` or ``validation``: the test accuracy in this round; ``worst``,
            ``loss``, … in the last round, or ``FIGURE@best``.
        by: Options to group by; default: all options that differ.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: A run does not have the figure.
    """
    chosen = trial_figure(figure)
    moments, unfinished, places = {}, [], dict[str, int]()
    groups = groups_in(runs, by)
    for group in groups:
        values = np.array([chosen.of(trial) for trial in group.complete]) * chosen.about.scale
        moments[group.label] = (float(values.mean()), float(values.std()))
        unfinished += [group.label] if group.state else []
        places[group.label] = len(places) if group.place is None else group.place
    title = with_score_of(chosen.title, groups)
    return bar_chart({"": moments}, title, unfinished=unfinished, places=places, **style)


def bar_chart(
    series: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
    *,
    unfinished: Collection[str] = (),
    places: Mapping[str, int] | None = None,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw bars of given numbers: a bar for each series in every category.

    Args:
        series: {series: {category: (mean, deviation)}}, NaN for none. A category that a series
            lacks is empty. Several series have colours and hatches in a legend.
        title: Title of the axis.
        unfinished: Categories whose bars are drawn empty.
        places: {category: number of its colour}, for a single series of groups that have these
            colours in other figures.
        **style: ``width`` and ``font``, see `bars`.

    Returns:
        Horizontal bars with their numbers, so that long names can be read.
    """
    look = Style(**style)
    categories = list(dict.fromkeys(name for moments in series.values() for name in moments))
    several = len(series) > 1
    thick = 0.8 / len(series)
    names, inches = look.bar_names(categories)
    inches = max(inches, 0.16 * len(categories) * len(series) + 0.1)
    made, axes = look.canvas(inches + 0.45, list(series) if several else [])
    handles, numbers = [], []
    for number, moments in enumerate(series.values()):
        aside = (number - (len(series) - 1) / 2) * thick
        known = [
            (name, n + aside, *moments[name])
            for n, name in enumerate(categories)
            if name in moments and not math.isnan(moments[name][0])
        ]
        y, means = [place for _, place, _, _ in known], [mean for _, _, mean, _ in known]
        errors = [0.0 if math.isnan(std) else std for _, _, _, std in known]
        handles.append(axes.barh(y, means, height=thick * 0.9, **bar_style(number * several)))
        for (name, *_), bar in zip(known, handles[-1], strict=True):
            if places and name in places:
                bar.set_facecolor(COLOURS[places[name] % len(COLOURS)])
            if name in unfinished:
                bar.set(edgecolor=bar.get_facecolor(), linewidth=0.9, linestyle="--", hatch="")
                bar.set_facecolor(GROUND)
        axes.errorbar(
            means, y, xerr=errors, fmt="none", ecolor=INK, elinewidth=0.7, capsize=1.5, capthick=0.7
        )
        numbers += [(max(m + e, 0.0), p, m) for m, e, p in zip(means, errors, y, strict=True)]
    # Bars begin at zero, because readers compare their lengths; numbers need room on the right.
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.0), right + 0.12 * (right - min(left, 0.0)))
    for end, place, value in numbers:
        text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
        axes.annotate(
            text, (end, place), (3, 0), textcoords="offset points", va="center_baseline",
            **look.text(look.small - 0.5),
        )  # fmt: skip
    name_bars(axes, names)
    axes.set_xlabel(title)
    if several:
        look.legend(made, handles, list(series))
    return made


UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def traffic(
    runs: Runs | Sequence[Group],
    *,
    by: str | Sequence[str] = (),
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the bytes that all clients send and receive in a round, as means over all rounds.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        by: Options to group by; default: all options that differ.
        **style: ``width`` and ``font``, see `bars`.
    """
    bytes_by_group = {
        group.label: {
            "sent by clients": _mean(group, lambda row: row.upload_bytes),
            "received by clients": _mean(group, lambda row: row.download_bytes),
        }
        for group in groups_in(runs, by)
    }
    largest = max(sum(parts.values()) for parts in bytes_by_group.values())
    factor, unit = next(((f, u) for f, u in UNITS if largest >= f), UNITS[-1])
    scaled = {g: {k: v / factor for k, v in parts.items()} for g, parts in bytes_by_group.items()}
    return _stacked(scaled, f"{unit} a round", Style(**style))


def _mean(group: Group, read: Callable[[Row], float]) -> float:
    """Return the mean of a number over all rounds of all trials."""
    values = [v for trial in group.trials for v in trial.each(lambda row: float(read(row)))]
    return float(np.mean([finite(value) or 0.0 for value in values]))


def _stacked(bars: dict[str, dict[str, float]], title: str, look: Style) -> Figure:
    """Draw a bar for each group with its parts and their sum."""
    parts = list(next(iter(bars.values())))
    handles: list[Any] = []
    names, inches = look.bar_names(list(bars))
    made, axes = look.canvas(inches + 0.45, parts)
    ends = np.zeros(len(bars))
    for number, part_name in enumerate(parts):
        lengths = np.array([bar[part_name] for bar in bars.values()])
        style = bar_style(number)
        handles.append(axes.barh(range(len(bars)), lengths, left=ends, height=0.66, **style))
        ends = ends + lengths
    for place, end in enumerate(ends):
        axes.annotate(
            f"{end:.3g}" if end else "nothing", (end, place), (4, 0), textcoords="offset points",
            va="center_baseline", **look.text(look.small - 0.5),
        )  # fmt: skip
    axes.set_xlim(0, (float(ends.max()) or 1.0) * 1.13)
    name_bars(axes, names)
    axes.set_xlabel(title)
    look.legend(made, handles, parts)
    return made

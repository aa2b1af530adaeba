"""Figures over rounds or over their cost: a curve for each group, with a band over its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from protofl.errors import unknown
from protofl_workbench.comparing.run_figures import COSTS, figure_named
from protofl_workbench.comparing.run_groups import (
    Group,
    Runs,
    grouped,
    no_rounds_error,
    runs_by_label,
    with_score_of,
    without_copies,
)
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.plots.style import INK, Style, StyleOptions, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BANDS = ("std", "range", "trials", "none")

Floats = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """The curve of a group.

    Attributes:
        x: Positions of the points, [n].
        each: Values of each trial, [trials, n].
        others: x and values of trials that are shorter than the longest.
        place: Number of its colour, marker and line; None for its position in the figure.
    """

    x: Floats
    each: Floats
    others: tuple[tuple[Floats, Floats], ...] = ()
    place: int | None = None


def curve(
    runs: Runs | Sequence[Group],
    y: str = "accuracy",
    x: str = "rounds",
    *,
    by: str | Sequence[str] = (),
    band: str = "std",
    target: float | None = None,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw a figure of runs over rounds or over the cost of rounds.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups (`comparing.grouped`).
        y: The figure: ``accuracy``, ``loss``, ``macro-f1``, … or a name in the record
            (``loss_terms.align``).
        x: ``rounds``, ``mb``, ``upload-mb``, ``seconds``, ``flops`` or ``virtual``.
        by: Options to group by; default: all options that differ.
        band: Around the mean of the trials: ``std``, the population standard deviation;
            ``range``, from minimum to maximum; ``trials``, each trial as a line; or ``none``.
        target: A value of y at which a line is drawn; for an accuracy a share, 0.8.
        **style: ``width``: ``column`` (3.3 in), ``page`` (6.9 in) or inches; ``font``: ``serif``
            or ``sans``.

    Returns:
        A matplotlib figure. Trials that are shorter than the longest of their group are thin lines
        and do not count in its mean and band. Over costs, a round is at the mean cost of the
        trials. Labels name the data if it differs. Losses that were never finite are left out.

    Raises:
        UsageError: A figure or cost is not recorded, a name is unknown.
    """
    figure = figure_named(y)
    groups = groups_in(runs, by)
    finite = [g for g in groups if not all(trial.never_finite(y) for trial in g.trials)]
    curves = {group.label: _curve_of(group, y, x) for group in finite or groups}
    return curve_chart(
        curves,
        with_score_of(figure.label, groups),
        COSTS[x].title,
        scale=figure.scale,
        whole=x == "rounds",
        band=band,
        target=target,
        **style,
    )


def curve_chart(
    curves: Mapping[str, Curve],
    y: str,
    x: str,
    *,
    scale: float = 1.0,
    whole: bool = False,
    band: str = "std",
    target: float | None = None,
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw curves of given numbers.

    Args:
        curves: {label: points}.
        y: Title of the y axis.
        x: Title of the x axis.
        scale: Factor with which values are shown.
        whole: True if x has integers.
        band: See `curve`.
        target: A value at which a line is drawn.
        **style: ``width`` and ``font``, see `curve`.

    Raises:
        UsageError: The band, width or font is unknown.
    """
    from matplotlib.ticker import MaxNLocator

    if band not in BANDS:
        raise unknown("band", band, BANDS)
    look = Style(**style)
    labels = list(curves) if len(curves) > 1 else []
    made, axes = look.canvas(look.height, labels)
    handles = [
        _draw(axes, n if points.place is None else points.place, points, scale, band)
        for n, points in enumerate(curves.values())
    ]
    if target is not None:
        axes.axhline(target * scale, color=INK, linewidth=0.6, linestyle=":")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    else:
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 5), useMathText=True)
    if labels:
        look.legend(made, handles, labels)
    return made


def groups_in(runs: Runs | Sequence[Group], by: str | Sequence[str] = ()) -> list[Group]:
    """Return given groups, or group runs, without groups that have no round.

    The label of a group without a finished trial says how many rounds are done.

    Args:
        runs: The groups or runs.
        by: Options to group by.

    Raises:
        UsageError: No group has a round.
    """
    if isinstance(runs, Sequence) and runs and all(isinstance(each, Group) for each in runs):
        groups = runs = [each for each in runs if isinstance(each, Group)]
    else:
        groups = without_copies(grouped(runs, by), [])  # type: ignore[arg-type] # no groups
    there = [group for group in groups if any(trial.rows for trial in group.trials)]
    if not there:
        known = {} if groups is runs else runs_by_label(runs)  # type: ignore[arg-type]
        raise no_rounds_error(run for label_runs in known.values() for run in label_runs)
    return [replace(g, label=f"{g.label} ({g.state})") if g.state else g for g in there]


def _draw(axes: Axes, number: int, curve: Curve, scale: float, band: str) -> Line2D:
    """Draw the n-th curve with its band; return its line, for a legend."""
    style = line_style(number)
    thin = {"color": style["color"], "linewidth": 0.6, "alpha": 0.7}
    every = max(1, len(curve.x) // 8)
    each = curve.each * scale
    mean, std = each.mean(0), each.std(0)
    if band == "trials" and len(each) > 1:
        for values in each:
            axes.plot(curve.x, values, **thin)
    elif band != "none" and len(each) > 1:
        ends = (mean - std, mean + std) if band == "std" else (each.min(0), each.max(0))
        axes.fill_between(curve.x, *ends, color=style["color"], alpha=0.16, linewidth=0)
    for x, values in curve.others:
        axes.plot(x, values * scale, **thin)
    # Markers of different curves are at different rounds, if there are enough rounds.
    (line,) = axes.plot(curve.x, mean, markevery=(number % every, every), **style)
    return line


def _curve_of(group: Group, y: str, x: str) -> Curve:
    """Return the curve of a group over the trials that are as long as the longest."""
    finite_trials = [trial for trial in group.trials if not trial.never_finite(y)]
    each = [_points(trial, y, x) for trial in finite_trials or group.trials]
    most = max(int(rounds[-1]) for rounds, _, _ in each)
    full = [points for points in each if points[0][-1] == most]
    shared = set.intersection(*({*rounds.tolist()} for rounds, _, _ in full))
    kept = [np.isin(rounds, list(shared)) for rounds, _, _ in full]
    costs = np.stack([cost[k] for (_, cost, _), k in zip(full, kept, strict=True)])
    values = np.stack([value[k] for (_, _, value), k in zip(full, kept, strict=True)])
    others = tuple((cost, value) for rounds, cost, value in each if rounds[-1] != most)
    return Curve(costs.mean(0), values, others, group.place)


def _points(trial: Trial, y: str, x: str) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Return the rounds of a trial with a figure, the cost up to them, and the values."""
    places, values = trial.series(y)
    rounds = np.array([trial.rows[place].round for place in places], dtype=np.int64)
    return rounds, trial.spent(x)[places], values

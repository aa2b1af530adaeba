"""A figure over rounds, or over what they cost: a curve for each group, a band over its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError, unknown
from protofl_workbench.comparing.groups import Group, Runs, grouped, opened, without_copies
from protofl_workbench.comparing.standing import is_lost, without_rounds
from protofl_workbench.comparing.trials import COSTS, Trial, figure_named
from protofl_workbench.plots.style import INK, canvas, height_of, legend, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BANDS = ("std", "range", "trials", "none")

Floats = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """A group's curve.

    Attributes:
        x: Where it has points, [n].
        each: The values of its trials there, [trials, n].
        others: Trials that have not come as far as the longest: x and values of each.
    """

    x: Floats
    each: Floats
    others: tuple[tuple[Floats, Floats], ...] = ()


def curve(
    runs: Runs | Sequence[Group],
    y: str = "accuracy",
    x: str = "rounds",
    *,
    by: str | Sequence[str] = (),
    band: str = "std",
    log: bool = False,
    target: float | None = None,
    y_range: tuple[float, float] | None = None,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw a figure of runs over rounds or over what rounds have cost.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups (`comparing.grouped`).
        y: The figure: ``accuracy``, ``loss``, ``macro-f1``, … or as it stands in the record
            (``loss_terms.align``).
        x: ``rounds``, ``mb``, ``upload-mb``, ``seconds``, ``flops`` or ``virtual``.
        by: Options by which runs are grouped; what differs between them where none is given.
        band: What is drawn about the mean of a group's trials: ``std``, their (population)
            deviation; ``range``, from the least to the largest; ``trials``, each by itself;
            or ``none``.
        log: Whether x is logarithmic.
        target: A value of y at which a line is drawn: of an accuracy a share, 0.8.
        y_range: The part of y that is shown: of an accuracy shares, (0.9, 0.95); None for all.
        width: ``column`` (3.3 in), ``page`` (6.9 in) or inches.
        font: ``serif`` or ``sans``.

    Returns:
        A matplotlib figure. Trials that are shorter than the longest of their group are thin lines
        and don't count in its mean and band; with another x than rounds a round stands at the mean
        of the trials' costs. Groups on several data say on which; what was never finite, as the
        loss of runs that diverged at once, is left out.

    Raises:
        UsageError: Something of that is not recorded, there is no such name, or nothing in y_range.
    """
    figure = figure_named(y)
    groups = groups_in(runs, by)
    finite = [g for g in groups if not all(_never(t, figure.source) for t in g.trials)]
    found = {group.label: _curve_of(group, y, x) for group in finite or groups}
    return curve_chart(
        found,
        figure.label,
        COSTS[x].title,
        scale=figure.scale,
        whole=x == "rounds",
        band=band,
        log=log,
        target=target,
        y_range=y_range,
        width=width,
        font=font,
    )


def curve_chart(
    curves: Mapping[str, Curve],
    y: str,
    x: str,
    *,
    scale: float = 1.0,
    whole: bool = False,
    band: str = "std",
    log: bool = False,
    target: float | None = None,
    y_range: tuple[float, float] | None = None,
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw curves of numbers that are known.

    Args:
        curves: {label: its points}.
        y: What the values are, for the axis.
        x: What they stand over.
        scale: By what values are multiplied.
        whole: Whether x counts whole things.
        band: See `curve`.
        log: Whether x is logarithmic.
        target: A value at which a line is drawn.
        y_range: The part of y that is shown; None for all.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: There is no such band, width or font, or nothing in y_range.
    """
    from matplotlib.ticker import MaxNLocator

    if band not in BANDS:
        raise unknown("band", band, BANDS)
    if y_range is not None and not -math.inf < y_range[0] < y_range[1] < math.inf:
        text = "{:g},{:g}".format(*y_range)
        raise UsageError(f"--y-range {text}: there is nothing between", do="write LOW,HIGH")
    labels = list(curves) if len(curves) > 1 else []
    made, axes = canvas(width, height_of(width), font, labels)
    handles = draw_curves(axes, curves, scale, band)
    if target is not None:
        axes.axhline(target * scale, color=INK, linewidth=0.6, linestyle=":")
    if y_range is not None:
        axes.set_ylim(y_range[0] * scale, y_range[1] * scale)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log:
        axes.set_xscale("log")
    elif whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    else:
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 5), useMathText=True)
    if labels:
        legend(made, handles, labels, font)
    return made


def groups_in(runs: Runs | Sequence[Group], by: str | Sequence[str] = ()) -> list[Group]:
    """Groups as they are; runs as groups, of two runs of one seed that are the same one.

    Raises:
        UsageError: There is no round of any.
    """
    if isinstance(runs, Sequence) and runs and all(isinstance(each, Group) for each in runs):
        found = runs = [each for each in runs if isinstance(each, Group)]
    else:
        found = without_copies(grouped(runs, by), [])  # type: ignore[arg-type] # no groups, as was seen
    empty = [group for group in found if not any(trial.rows for trial in group.trials)]
    if len(empty) == len(found):
        known = {} if found is runs else opened(runs)  # type: ignore[arg-type]
        raise without_rounds(run for own in known.values() for run in own)
    return [group for group in found if group not in empty]


def draw_curves(
    axes: Axes, curves: Mapping[str, Curve], scale: float = 1.0, band: str = "std"
) -> list[Line2D]:
    """Draw curves into axes; returns the line of each, for a legend.

    Args:
        axes: The axes.
        curves: {label: curve}.
        scale: By what values are multiplied.
        band: See `curve`.
    """
    handles = []
    for number, own in enumerate(curves.values()):
        style = line_style(number)
        plain = {"color": style["color"], "linewidth": 0.6, "alpha": 0.7}
        every = max(1, len(own.x) // 8)
        mean = own.each.mean(0) * scale
        if band == "trials" and len(own.each) > 1:
            for values in own.each:
                axes.plot(own.x, values * scale, **plain)
        elif band != "none" and len(own.each) > 1:
            std = own.each.std(0) * scale
            low, high = (mean - std, mean + std) if band == "std" else (
                own.each.min(0) * scale, own.each.max(0) * scale
            )  # fmt: skip
            axes.fill_between(own.x, low, high, color=style["color"], alpha=0.16, linewidth=0)
        for x, values in own.others:
            axes.plot(x, values * scale, **plain)
        # Markers of different curves stand at different rounds, as far as there are enough.
        (line,) = axes.plot(own.x, mean, markevery=(number % every, every), **style)
        handles.append(line)
    return handles


def _never(trial: Trial, source: object) -> bool:
    """Whether a trial has a loss that was never finite, or no round."""
    each = [isinstance(source, str) and is_lost(row, source) for row in trial.rows]
    return all(each)


def _curve_of(group: Group, y: str, x: str) -> Curve:
    """A group's curve, of the trials that are as long as the longest; the others beside it."""
    own = [trial for trial in group.trials if not _never(trial, figure_named(y).source)]
    each = [_points(trial, y, x) for trial in own or group.trials]
    most = max(int(rounds[-1]) for rounds, _, _ in each)
    whole = [own for own in each if own[0][-1] == most]
    shared = set.intersection(*({*rounds.tolist()} for rounds, _, _ in whole))
    kept = [np.isin(rounds, list(shared)) for rounds, _, _ in whole]
    costs = np.stack([cost[k] for (_, cost, _), k in zip(whole, kept, strict=True)])
    values = np.stack([value[k] for (_, _, value), k in zip(whole, kept, strict=True)])
    others = tuple((cost, value) for rounds, cost, value in each if rounds[-1] != most)
    return Curve(costs.mean(0), values, others)


def _points(trial: Trial, y: str, x: str) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The rounds of a trial that have a figure, what was spent until then, and its values."""
    places, values = trial.series(y)
    rounds = np.array([trial.rows[place]["round"] for place in places], dtype=np.int64)
    return rounds, trial.spent(x)[places], values

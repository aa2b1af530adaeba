"""Charts of clients: the accuracy of each one, and the samples of each class that each one has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from protofl.system.formatting import shortened
from protofl_workbench.comparing.run_groups import Group, Runs, with_score_of
from protofl_workbench.comparing.trial_figures import (
    accuracies_by_client,
    accuracies_by_rank,
    shares_of,
)
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.plots.bar_charts import bar_chart
from protofl_workbench.plots.curves import groups_in
from protofl_workbench.plots.style import (
    COLOURS,
    FAINT,
    INK,
    Style,
    StyleOptions,
    line_style,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

BANDS = 6
"""Largest number of groups with bands: more bands would hide each other."""

BARS = 80
"""Largest number of bars of clients with names."""

Floats = npt.NDArray[np.float64]


def clients(
    runs: Runs | Sequence[Group],
    *,
    by: str | Sequence[str] = (),
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the final accuracy of each client, the worst first.

    Clients with the same names in all groups have bars of the mean over trials with the deviation,
    as long as there are at most 80 bars. Others are ranked within each trial, and each group is a
    curve of the mean over trials, with the deviation if there are at most six groups.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        by: Options to group by; default: all options that differ.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: A run has not recorded the accuracies: it has more than 1,000 clients.
    """
    look, groups = Style(**style), groups_in(runs, by)
    places = [n if group.place is None else group.place for n, group in enumerate(groups)]
    trials = {g.label: [trial for trial in g.trials if trial.rows] for g in groups}
    named = {run.client_names for group in groups for run in group.runs}
    names = named.pop() if len(named) == 1 else ()
    if 0 < len(names) * len(groups) <= BARS:
        title, series = with_score_of("test accuracy (%)", groups), _by_name(trials, names)
        return bar_chart(series, title, **style)
    labels = list(trials) if len(trials) > 1 else []
    made, axes = look.canvas(look.height, labels)
    axes.set_ylabel(with_score_of("test accuracy (%)", groups))
    ranked = [accuracies_by_rank(group_trials) * 100 for group_trials in trials.values()]
    _draw_sorted(axes, ranked, places)
    axes.set_xlabel(with_score_of("clients by accuracy (%)", groups))
    if labels:
        look.legend(made, axes.get_lines(), labels)
    return made


def _by_name(
    trials: Mapping[str, Sequence[Trial]], names: Sequence[str]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return {group: {client: mean and deviation in %}}, the worst of the first group first."""
    series = {}
    for label, each in trials.items():
        scores = [accuracies_by_client(trial) for trial in each]
        shares = {c: [100 * one[c] for one in scores if c in one] for c in scores[0]}
        moments = {names[int(c)]: (float(np.mean(v)), float(np.std(v))) for c, v in shares.items()}
        series[label] = dict(sorted(moments.items(), key=lambda item: item[1]))
    return series


def _draw_sorted(axes: Axes, groups: Sequence[Floats], places: Sequence[int]) -> None:
    for place, each in zip(places, groups, strict=True):
        mean, std, share = each.mean(0), each.std(0), shares_of(each.shape[1]) * 100
        style = line_style(place)
        if len(each) > 1 and len(groups) <= BANDS:
            axes.fill_between(
                share, mean - std, np.minimum(mean + std, 100), color=style["color"],
                alpha=0.16, linewidth=0,
            )  # fmt: skip
        axes.plot(share, mean, markevery=max(1, len(share) // 10), **style)
    axes.set_xlim(0, 100)


CELLS = 14.0
"""Inches of the longer side of the chart, as long as its cells can be seen."""


def split_figure(
    counts: npt.NDArray[np.int64] | Tensor,
    classes: list[str],
    title: str,
    clients: Sequence[str] = (),
    part: str = "class",
) -> Figure:
    """Draw the number of samples of each class (y) at each client (x).

    The area of a bubble is proportional to the number of samples, as in FedTGP's Figures 7-9.

    Args:
        counts: Samples of each client and class, [M, C].
        classes: Names of the C classes.
        title: Title of the figure.
        clients: Names of the M clients; empty for their numbers.
        part: What samples are counted by, for the axis.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    table = np.asarray(counts)
    cell = float(np.clip(CELLS / max(table.shape), 0.15, 0.42))
    wide, high = (float(np.clip(cell * count, 1.5, 40.0)) for count in table.shape)
    names = [shortened(name, 18) for name in classes]
    look = Style(wide + 1.5 + 0.08 * max(map(len, names)), "sans")
    heading = wrapped(title, look.inches)
    turned_height = 0.05 * max((len(shortened(name, 18)) for name in clients), default=0)
    made, axes = look.canvas(high + 0.6 + turned_height + 0.16 * heading.count("\n"))
    largest = int(table.max(initial=0))

    def width(number: float) -> float:
        """Return the diameter of a bubble in points; the smallest bubbles stay visible."""
        room: float = 72 * 0.92 * min(wide / table.shape[0], high / table.shape[1], 0.42)
        return max(room * math.sqrt(number / max(1, largest)), 1.1)

    x, y = np.nonzero(table)
    sizes = [width(number) ** 2 for number in table[x, y].tolist()]
    axes.scatter(x, y, s=sizes, color=COLOURS[0], linewidths=0, zorder=3)
    axes.set(xlim=(-0.5, len(table) - 0.5), ylim=(-0.5, len(names) - 0.5))
    if clients:
        places = range(0, len(table), math.ceil(0.13 * len(table) / wide))
        turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        labels = [shortened(clients[place], 18) for place in places]
        axes.set_xticks(places, labels, parse_math=False, **turned)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(max(1, int(wide / 0.4)), integer=True))
    shown = range(0, len(names), math.ceil(0.13 * len(names) / high))
    axes.set_yticks(shown, [names[c] for c in shown], parse_math=False)
    axes.tick_params(length=0)
    axes.set_xlabel("client")
    axes.set_ylabel(part)
    axes.set_title(heading, loc="left", **look.text(look.large))
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT)
    numbers = _round_numbers(largest)
    dots = [
        Line2D([], [], linestyle="none", marker="o", color=COLOURS[0], markersize=width(number))
        for number in numbers
    ]
    if dots:
        key = made.legend(
            dots, [f"{number:,}" for number in numbers], loc="outside right upper",
            title="samples", frameon=False, fontsize=look.large, labelspacing=2.2,
            handletextpad=1.2,
        )  # fmt: skip
        for text in (key.get_title(), *key.get_texts()):
            text.set(fontsize=look.large, color=INK)
    return made


def _round_numbers(largest: int) -> list[int]:
    """Return up to three round numbers: near the largest, about a third, and about a tenth."""
    numbers = []
    for value in (largest, largest * 0.35, largest * 0.1):
        if value >= 1:
            unit = 10 ** math.floor(math.log10(value))
            numbers.append(int(value // unit) * unit)
    return sorted(set(numbers), reverse=True)

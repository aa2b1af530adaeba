"""The accuracy of each client: who is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError, unknown
from protofl.records.folder.row import Row
from protofl_workbench.comparing.groups import Group, Runs
from protofl_workbench.comparing.selection import WHEN, best_place
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.plots.curves import groups_in
from protofl_workbench.plots.style import (
    COLOURS,
    INK,
    canvas,
    height_of,
    legend,
    line_style,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("sorted", "box", "strip")

BANDS = 6
"""Groups at most that have bands: more would hide each other."""


def clients(
    runs: Runs | Sequence[Group],
    *,
    kind: str = "sorted",
    when: str = "final",
    by: str | Sequence[str] = (),
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw the accuracy of each client.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        kind: ``sorted``, a curve for each group, the worst client at the left, the mean of the
            trials' clients of one rank with their deviation, of six groups at most; ``box``,
            quartiles, whiskers to the 5th and 95th percentile, and the rest as points; ``strip``,
            each client a point.
        when: ``final``, the last round; ``best``, that with the best test accuracy;
            ``validation``, that with the best validation accuracy.
        by: Options by which runs are grouped; what differs between them where none is given.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: A run has not recorded them (it has more than 1,000 clients), or there is no
            such name.
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if when not in WHEN:
        raise unknown("round", when, WHEN)
    found = {
        group.label: [accuracies(trial, when) for trial in group.trials if trial.rows]
        for group in groups_in(runs, by)
    }
    labels = list(found) if kind == "sorted" and len(found) > 1 else []
    made, axes = canvas(width, height_of(width), font, labels)
    axes.set_ylabel("test accuracy (%)")
    if kind == "sorted":
        _sorted(axes, list(found.values()))
        axes.set_xlabel("clients by accuracy (%)")
        if labels:
            legend(made, axes.get_lines(), labels, font)
        return made
    pooled = [np.concatenate(own) for own in found.values()]
    (_boxes if kind == "box" else _strips)(axes, pooled)
    each = made.get_figwidth() * 0.85 / len(found)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    many = each < 0.45 or any(len(w) * 0.055 > each for name in found for w in name.split())
    names = [wrapped(name, 1.3 if many else each) for name in found]
    axes.set_xticks(range(len(found)), names, parse_math=False, **(turned if many else {}))
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    return made


def accuracies(trial: Trial, when: str = "final") -> npt.NDArray[np.float64]:
    """Each client's accuracy in %, ascending.

    Raises:
        UsageError: They are not recorded.
    """
    each = trial.each(_ascending)
    there = [own for own in each if len(own)]
    found = there[-1] if there and when == "final" else np.empty(0)
    if when != "final":
        found = each[best_place(trial, when)]
    if not len(found):
        raise UsageError(
            f"{trial.name} has no accuracy of each client",
            do="they are recorded of runs with at most 1,000 clients",
        )
    return found


def _ascending(row: Row) -> npt.NDArray[np.float64]:
    values = [*row.client_accuracies.values()]
    return np.sort(np.array(values, dtype=np.float64)) * 100


def _sorted(axes: Axes, groups: Sequence[Sequence[npt.NDArray[np.float64]]]) -> None:
    for number, own in enumerate(groups):
        count = min(map(len, own))
        # Trials in which different numbers of clients could be scored are read at the same shares.
        share = (np.arange(count) + 0.5) / count
        each = np.stack([np.interp(share, (np.arange(len(a)) + 0.5) / len(a), a) for a in own])
        style = line_style(number)
        if len(each) > 1 and len(groups) <= BANDS:
            mean, std = each.mean(0), each.std(0)
            axes.fill_between(
                share * 100, mean - std, np.minimum(mean + std, 100), color=style["color"],
                alpha=0.16, linewidth=0,
            )  # fmt: skip
        axes.plot(share * 100, each.mean(0), markevery=max(1, count // 10), **style)
    axes.set_xlim(0, 100)


def _boxes(axes: Axes, groups: Sequence[npt.NDArray[np.float64]]) -> None:
    thin = {"color": INK, "linewidth": 0.7}
    drawn = axes.boxplot(
        list(groups), positions=range(len(groups)), widths=0.5, whis=(5, 95), patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.4}, whiskerprops=thin, capprops=thin,
        flierprops={"marker": "o", "markersize": 2, "markerfacecolor": INK, "markeredgewidth": 0},
        manage_ticks=False,
    )  # fmt: skip
    for number, box in enumerate(drawn["boxes"]):
        box.set(facecolor=COLOURS[number % len(COLOURS)] + "99", edgecolor=INK, linewidth=0.7)
    axes.set_xlim(-0.6, len(groups) - 0.4)


def _strips(axes: Axes, groups: Sequence[npt.NDArray[np.float64]]) -> None:
    for number, own in enumerate(groups):
        # Beside each other by a sequence that fills evenly: the same picture each time.
        aside = (np.arange(len(own)) * 0.6180339887) % 1 - 0.5
        style = line_style(number)
        axes.plot(
            number + aside * 0.5, own, linestyle="none", marker=style["marker"], markersize=2.8,
            color=style["color"], alpha=0.75, markeredgewidth=0,
        )  # fmt: skip
        axes.plot([number - 0.3, number + 0.3], [np.median(own)] * 2, color=INK, linewidth=1.2)
    axes.set_xlim(-0.6, len(groups) - 0.4)

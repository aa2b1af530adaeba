"""The accuracy of each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protofl.errors import unknown
from protofl_workbench.comparing.run_groups import Group, Runs
from protofl_workbench.comparing.trial_figures import (
    ROUNDS,
    accuracies_by_rank,
    client_accuracies,
    shares_of,
)
from protofl_workbench.plots.curves import groups_in
from protofl_workbench.plots.style import COLOURS, INK, Style, StyleOptions, line_style, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

KINDS = ("sorted", "box", "strip")

BANDS = 6
"""Largest number of groups with bands: more bands would hide each other."""

Floats = npt.NDArray[np.float64]


def clients(
    runs: Runs | Sequence[Group],
    *,
    kind: str = "sorted",
    when: str = "final",
    by: str | Sequence[str] = (),
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the accuracy of each client.

    Args:
        runs: Runs, folders, a mapping of labels to them, or groups.
        kind: ``sorted``: a curve for each group, the worst client on the left. Clients are ranked
            within each trial; the curve is the mean over trials, with the deviation if there are at
            most six groups. ``box``: quartiles, whiskers at the 5th and 95th percentile, and the
            rest as points. ``strip``: a point for each client.
        when: ``final``, the last round; ``best``, the one with the best test accuracy;
            ``validation``, the one with the best validation accuracy.
        by: Options to group by; default: all options that differ.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Raises:
        UsageError: A run has not recorded the accuracies (it has more than 1,000 clients), or a
            name is unknown.
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if when not in ROUNDS:
        raise unknown("round", when, ROUNDS)
    look, groups = Style(**style), groups_in(runs, by)
    trials = {g.label: [trial for trial in g.trials if trial.rows] for g in groups}
    labels = list(trials) if kind == "sorted" and len(trials) > 1 else []
    made, axes = look.canvas(look.height, labels)
    axes.set_ylabel("test accuracy (%)")
    if kind == "sorted":
        _draw_sorted(axes, [accuracies_by_rank(own, when) * 100 for own in trials.values()])
        axes.set_xlabel("clients by accuracy (%)")
        if labels:
            look.legend(made, axes.get_lines(), labels)
        return made
    pooled = [
        np.concatenate([client_accuracies(trial, when) * 100 for trial in own])
        for own in trials.values()
    ]
    (_draw_boxes if kind == "box" else _draw_strips)(axes, pooled)
    axes.set_xlim(-0.6, len(pooled) - 0.4)
    each = look.inches * 0.85 / len(trials)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    many = each < 0.45 or any(len(w) * 0.055 > each for name in trials for w in name.split())
    names = [wrapped(name, 1.3 if many else each) for name in trials]
    axes.set_xticks(range(len(trials)), names, parse_math=False, **(turned if many else {}))
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    return made


def _draw_sorted(axes: Axes, groups: Sequence[Floats]) -> None:
    for number, each in enumerate(groups):
        mean, std, share = each.mean(0), each.std(0), shares_of(each.shape[1]) * 100
        style = line_style(number)
        if len(each) > 1 and len(groups) <= BANDS:
            axes.fill_between(
                share, mean - std, np.minimum(mean + std, 100), color=style["color"],
                alpha=0.16, linewidth=0,
            )  # fmt: skip
        axes.plot(share, mean, markevery=max(1, len(share) // 10), **style)
    axes.set_xlim(0, 100)


def _draw_boxes(axes: Axes, groups: Sequence[Floats]) -> None:
    thin = {"color": INK, "linewidth": 0.7}
    drawn = axes.boxplot(
        list(groups), positions=range(len(groups)), widths=0.5, whis=(5, 95), patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.4}, whiskerprops=thin, capprops=thin,
        flierprops={"marker": "o", "markersize": 2, "markerfacecolor": INK, "markeredgewidth": 0},
        manage_ticks=False,
    )  # fmt: skip
    for number, box in enumerate(drawn["boxes"]):
        box.set(facecolor=COLOURS[number % len(COLOURS)] + "99", edgecolor=INK, linewidth=0.7)


def _draw_strips(axes: Axes, groups: Sequence[Floats]) -> None:
    for number, own in enumerate(groups):
        # A sequence that fills evenly spreads the points: the same picture each time.
        aside = (np.arange(len(own)) * 0.6180339887) % 1 - 0.5
        style = line_style(number)
        axes.plot(
            number + aside * 0.5, own, linestyle="none", marker=style["marker"], markersize=2.8,
            color=style["color"], alpha=0.75, markeredgewidth=0,
        )  # fmt: skip
        axes.plot([number - 0.3, number + 0.3], [np.median(own)] * 2, color=INK, linewidth=1.2)

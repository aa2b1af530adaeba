"""Pictures of a benchmark: critical differences in each setting, and ranks over settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.system.files.atomic import write_file
from protofl_workbench.plots.figure_files import drawn
from protofl_workbench.plots.style import COLOURS, FAINT, FONTS, GROUND, INK, SMALL, TEXT, WIDTHS
from protofl_workbench.reproductions.benchmark.standings import (
    BenchmarkSetting,
    Ranks,
    compared,
    ranks_over,
)
from protofl_workbench.reproductions.reproduction import Reproduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.15
"""Inches of a method's line."""


def draw_pictures(
    reproduction: Reproduction, settings: Sequence[BenchmarkSetting], folder: Path
) -> list[Path]:
    """Draw ``groups.png`` and ``ranks.png`` as far as there are methods to compare.

    Returns:
        The written files.
    """
    paths, shown = [], compared(settings)
    folder.mkdir(parents=True, exist_ok=True)
    if shown:
        paths.append(_write(groups_figure(shown), folder / "groups.png"))
    over = ranks_over(shown)
    if len(shown) > 1 and len(over) > 1:
        figure = ranks_figure(over, [s.name for s in shown])
        paths.append(_write(figure, folder / "ranks.png"))
    return paths


def _write(figure: Figure, path: Path) -> Path:
    write_file(path, drawn(figure, "png", transparent=False, **{"savefig.dpi": 130}))
    return path


def groups_figure(settings: Sequence[BenchmarkSetting]) -> Figure:
    """Return a panel for each setting: mean ranks over blocks, and bars that join groups."""
    columns = 2 if len(settings) > 1 else 1
    rows = -(-len(settings) // columns)
    most = max(len(setting.ranked) for setting in settings)
    figure = _canvas(rows * (most * LINE + 0.7))
    for number, setting in enumerate(settings, 1):
        axes = figure.add_subplot(rows, columns, number)
        _prepare(axes, [standing.method for standing in setting.ranked], "mean rank")
        axes.set_title(setting.name, fontsize=TEXT, fontfamily=FONTS["serif"], color=INK)
        ranks = [standing.mean_rank for standing in setting.ranked]
        axes.plot(ranks, range(len(ranks)), "o", color=COLOURS[0], markersize=3.2)
        right = max(ranks)
        step = 0.035 * (right - min(ranks) + 1)
        places = {standing.method: n for n, standing in enumerate(setting.ranked)}
        for place, clique in enumerate(setting.cliques):
            at = right + step * (1.5 + place)
            ends = [places[clique[0]] - 0.2, places[clique[-1]] + 0.2]
            axes.plot([at, at], ends, color=COLOURS[1], linewidth=1.6, solid_capstyle="butt")
    return figure


def ranks_figure(ranks: Sequence[Ranks], settings: Sequence[str]) -> Figure:
    """Return a line for each method: its rank in each setting, their mean and their range."""
    from matplotlib.font_manager import FontProperties

    figure = _canvas(len(ranks) * LINE + 1.0)
    axes = figure.add_subplot()
    _prepare(axes, [one.method for one in ranks], f"rank among {len(ranks)} methods")
    for place, one in enumerate(ranks):
        axes.plot([min(one.ranks), max(one.ranks)], [place, place], color=FAINT, linewidth=3)
    markers = ("o", "s", "^", "D", "v", "P", "X", "<")
    for number, name in enumerate(settings):
        apart = 0.5 * ((number + 0.5) / len(settings) - 0.5)  # equal ranks stay visible
        axes.plot(
            [one.ranks[number] for one in ranks],
            [place + apart for place in range(len(ranks))],
            linestyle="none",
            marker=markers[number % len(markers)],
            color=COLOURS[number % len(COLOURS)],
            markersize=3.4,
            label=name,
        )
    means = [one.mean for one in ranks]
    axes.plot(means, range(len(ranks)), "|", color=INK, markersize=9, label="mean")
    figure.legend(
        loc="outside upper center",
        ncols=4,
        frameon=False,
        prop=FontProperties(family=FONTS["serif"], size=SMALL),
        labelcolor=INK,
    )
    return figure


def _canvas(height: float) -> Figure:
    """Return an empty figure of the page's width; pyplot is not used."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTHS["page"], height), facecolor=GROUND)
    figure.set_layout_engine("constrained")
    return figure


def _prepare(axes: Axes, names: Sequence[str], label: str) -> None:
    """Set up axes with a line for each method, the first at the top."""
    axes.set_yticks(range(len(names)), list(names), fontsize=SMALL, fontfamily=FONTS["serif"])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=SMALL, labelfontfamily=FONTS["serif"])
    axes.tick_params(width=0.6, length=2.5, color=INK, labelcolor=INK)
    axes.set_xlabel(label, fontsize=SMALL, fontfamily=FONTS["serif"], color=INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=INK, linewidth=0.6)

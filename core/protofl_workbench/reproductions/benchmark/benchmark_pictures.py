"""Pictures of a benchmark: gaps to ``local`` over the number of samples, and against traffic.

A benchmark whose settings have no number has one picture: the gaps of all methods, a line each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from protofl_workbench.plots.style import INK, Style, line_style
from protofl_workbench.reproductions.benchmark.benchmark_records import CENTRALISED, LOCAL
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting, Standing
from protofl_workbench.reproductions.reproduction import Reproduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

HEIGHT, LINE = 2.3, 0.2
"""Inches of a row of panels, and of a method's line."""

Points = list[tuple[float, Standing]]


def pictures(reproduction: Reproduction, settings: Sequence[BenchmarkSetting]) -> dict[str, Figure]:
    """Return the pictures by name; empty without a gap to draw.

    Args:
        reproduction: The benchmark. A setting's place is the number in its label: ``n = 30``.
        settings: The standings.
    """
    panels: dict[str, list[tuple[float, BenchmarkSetting]]] = {}
    for setting in settings:
        column = reproduction.columns.get(setting.name)
        number = re.search(r"\d+", column.label) if column else None
        if column and number:
            panels.setdefault(column.group, []).append((float(number[0]), setting))
    panels = {group: sorted(p, key=lambda p: p[0]) for group, p in panels.items() if len(p) > 1}
    if not panels:
        return _all_methods(reproduction, settings)
    lines: dict[str, dict[str, Points]] = {group: {} for group in panels}
    for group, panel in panels.items():
        for place, setting in panel:
            for standing in setting.standings:
                if standing.method not in (LOCAL, CENTRALISED) and not math.isnan(standing.gap):
                    lines[group].setdefault(standing.method, []).append((place, standing))
    found = {method for panel in lines.values() for method in panel}
    rows = [name for name in reproduction.rows if name in found]
    return {
        "gaps": _panels(lines, rows, _gaps, "training samples of a client", "log"),
        "traffic": _panels(lines, rows, _traffic, "MB a client sends and receives", "symlog"),
    }


def _all_methods(
    reproduction: Reproduction, settings: Sequence[BenchmarkSetting]
) -> dict[str, Figure]:
    """Draw the gap of each method in each setting, the largest mean gap first."""
    gaps: dict[str, dict[int, Standing]] = {}
    for place, setting in enumerate(settings):
        for standing in setting.standings:
            if standing.method not in (LOCAL, CENTRALISED) and not math.isnan(standing.gap):
                gaps.setdefault(standing.method, {})[place] = standing
    if not gaps:
        return {}
    methods = sorted(gaps, key=lambda m: fmean(s.gap for s in gaps[m].values()))
    look, names = Style("page"), [reproduction.columns[each.name].title for each in settings]
    made, axes = look.canvas(LINE * (len(methods) + 3), names)
    handles = []
    for place in range(len(settings)):
        found = [(y, gaps[m][place]) for y, m in enumerate(methods) if place in gaps[m]]
        sides = [s.gap - s.low for _, s in found], [s.high - s.gap for _, s in found]
        offset = 0.2 * ((len(settings) - 1) / 2 - place)
        handles.append(
            axes.errorbar(
                [100 * s.gap for _, s in found],
                [y + offset for y, _ in found],
                xerr=[[100 * half for half in side] for side in sides],
                **{**line_style(place), "linestyle": "none", "elinewidth": 0.8},
            )
        )
    axes.axvline(0, color=INK, linewidth=0.7)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(-0.7, len(methods) - 0.3)
    axes.set_xlabel("gap to local (points; logarithmic beyond ±5)")
    axes.set_xscale("symlog", linthresh=5)  # most methods are within a few points
    low, high = axes.get_xlim()
    ticks = [t for t in (-40, -20, -10, -5, -3, -1, 0, 1, 3, 5, 10, 20, 40) if low < t < high]
    axes.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks])
    axes.minorticks_off()
    look.legend(made, handles, names)
    return {"gaps": made}


def _panels(
    lines: dict[str, dict[str, Points]],
    rows: Sequence[str],
    draw: Callable[[Axes, Points, dict[str, Any]], Line2D],
    axis: str,
    scale: str,
) -> Figure:
    """Draw a panel for each group, two in a row, with one legend."""
    look = Style("page")
    across = min(2, len(lines))
    down = -(-len(lines) // across)
    made, first = look.canvas(HEIGHT * down, rows)
    first.remove()
    axes = made.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    handles: dict[str, Any] = {}
    for panel, (group, methods) in zip(axes.flat, lines.items(), strict=False):
        look.dress(panel)
        for method, points in methods.items():
            handles[method] = draw(panel, points, line_style(rows.index(method)))
        panel.axhline(0, color=INK, linewidth=0.7)
        panel.set_title(group, **look.text(look.large))
        panel.set_xscale(scale, **({"linthresh": 0.01} if scale == "symlog" else {}))
    drawn = [*axes.flat][: len(lines)]
    for empty in [*axes.flat][len(lines) :]:
        empty.remove()
    for panel in drawn[-across:]:  # those with nothing below
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(axis)
    for panel in axes[:, 0]:
        panel.set_ylabel("gap to local (points)")
    if scale == "log":
        places = sorted({place for m in lines.values() for p in m.values() for place, _ in p})
        axes[0][0].set_xticks(places, [f"{place:g}" for place in places])
        axes[0][0].minorticks_off()
    look.legend(made, [handles[row] for row in rows], rows)
    return made


def _gaps(axes: Axes, points: Points, style: dict[str, Any]) -> Line2D:
    """Draw gaps over the number of samples, with the intervals as ribbons."""
    x = [place for place, _ in points]
    low, high = ([100 * getattr(s, end) for _, s in points] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    return axes.plot(x, [100 * s.gap for _, s in points], **style)[0]


def _traffic(axes: Axes, points: Points, style: dict[str, Any]) -> Line2D:
    """Draw the mean gap of the settings against the mean traffic of a client."""
    traffic = fmean(s.upload + s.download for _, s in points) / 1e6
    look = {**style, "linestyle": "none", "markersize": 1.6 * style["markersize"]}
    return axes.plot([traffic], [100 * fmean(s.gap for _, s in points)], **look)[0]

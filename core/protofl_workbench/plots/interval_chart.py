"""Differences to a baseline with their intervals, as one chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from protofl.errors import UsageError
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.figure_table import GroupFigure
from protofl_workbench.comparing.run_groups import Runs
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    ROW,
    Style,
    StyleOptions,
    name_bars,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def differences(
    runs: Runs | Comparison,
    figure: str = "final",
    *,
    baseline: str = "",
    by: str | Sequence[str] = (),
    **style: Unpack[StyleOptions],
) -> Figure:
    """Draw the difference of each group to a baseline: the pairs, their mean and its interval.

    Args:
        runs: Runs, folders, a mapping of labels to them, or a comparison that has the figure.
        figure: A figure of `protofl.compare`.
        baseline: The baseline; default: as in `protofl.compare`.
        by: Options to group by; default: all options that differ.
        **style: ``width``: ``column``, ``page`` or inches; ``font``: ``serif`` or ``sans``.

    Returns:
        A row for each group and setting, with p on the right. If several groups are compared with
        the baseline, p is Holm's, and the axis says so.

    Raises:
        UsageError: The runs cannot be compared, or there is only one group.
    """
    look = Style(**style)
    comparison = (
        runs if isinstance(runs, Comparison) else compare(runs, figure, baseline=baseline, by=by)
    )
    tables = [table for table in comparison.tables if table.name == figure]
    rows = [(table, row) for table in tables for row in table.rows if row.difference is not None]
    if not rows:
        raise UsageError(
            f"there is no difference in {figure} to draw",
            "expected two groups that differ in more than seeds",
            "protofl compare shows the groups",
        )
    several = len({table.setting for table, _ in rows}) > 1
    labels = [f"{row.label} ({table.setting})" if several else row.label for table, row in rows]
    names, inches = look.bar_names(labels)
    bases = " or ".join(dict.fromkeys(table.baseline for table, _ in rows))
    title = f"{tables[0].title.replace(' (%)', '')}: difference to {bases}"
    title = (
        wrapped(title, 0.8 * look.inches, look.small) + "\n(percentage points)" * tables[0].share
    )
    # With several groups in a table, `holm` differs from p.
    corrected = any(sum(row.difference is not None for row in t.rows) > 1 for t in tables)
    title += "\np corrected by Holm's method" * corrected
    made, axes = look.canvas(inches + 0.55 + ROW * title.count("\n"))
    for place, (table, row) in enumerate(rows):
        (base,) = [other for other in table.rows if other.label == table.baseline]
        pairs = table.pairs(row, base)
        _draw(axes, place, row, pairs, table.share, look)
    axes.axvline(0, color=INK, linewidth=0.7)
    name_bars(axes, names)
    axes.set_xlabel(title, parse_math=False)
    return made


def _draw(
    axes: Axes, place: int, row: GroupFigure, pairs: Sequence[float], share: bool, look: Style
) -> None:
    """Draw the pairs, the interval, the mean and p of a group."""
    difference, scale = row.difference, 100.0 if share else 1.0
    assert difference is not None
    axes.plot(
        [scale * d for d in pairs], [place] * len(pairs), linestyle="none", marker="o",
        markersize=3.4, markeredgewidth=0.5, markeredgecolor=GROUND, color=COLOURS[5], zorder=4,
    )  # fmt: skip
    if not math.isnan(difference.low):
        ends = [difference.low * scale, difference.high * scale]
        axes.plot(ends, [place] * 2, color=COLOURS[0], linewidth=1.6, solid_capstyle="butt")
    axes.plot(
        [difference.mean * scale], [place], marker="D", markersize=4.5, color=COLOURS[0], zorder=5
    )
    p = difference.holm
    text = "" if math.isnan(p) else f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
    axes.annotate(
        text, (1, place), (3, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center_baseline", **look.text(look.small - 0.5),
    )  # fmt: skip

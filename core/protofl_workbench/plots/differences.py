"""Differences to a baseline with their intervals: what a comparison comes to, in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from protofl.errors import UsageError
from protofl_workbench.comparing.compare import compare
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.differences import Row, Table
from protofl_workbench.comparing.groups import Runs
from protofl_workbench.plots.style import (
    COLOURS,
    GROUND,
    INK,
    ROW,
    SMALL,
    bar_names,
    canvas,
    inches_of,
    name_bars,
    words,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def differences(
    runs: Runs | Comparison,
    figure: str = "final",
    *,
    baseline: str = "",
    by: str | Sequence[str] = (),
    width: str | float = "column",
    font: str = "serif",
) -> Figure:
    """Draw how far each group is from a baseline: each pair a point, their mean, and its interval.

    Args:
        runs: Runs, folders, a mapping of labels to them, or a comparison of `protofl.compare` that
            has the figure.
        figure: As `protofl.compare` takes it.
        baseline: The group that the others are held against; the first by default.
        by: Options by which runs are grouped; what differs between them where none is given.
        width: ``column``, ``page`` or inches.
        font: ``serif`` or ``sans``.

    Returns:
        A row for each group and each data; its p (Holm's, where several are compared) stands at the
        right.

    Raises:
        UsageError: Runs can't be compared, or there is only one group.
    """
    found = (
        runs if isinstance(runs, Comparison) else compare(runs, figure, baseline=baseline, by=by)
    )
    tables = [table for table in found.tables if table.name == figure]
    rows = [(table, row) for table in tables for row in table.rows if row.difference is not None]
    if not rows:
        raise UsageError(
            f"there is no difference in {figure} to draw",
            "it takes two groups that differ in more than seeds",
            "protofl compare shows the groups",
        )
    several = len({table.setting for table, _ in rows}) > 1
    labels = [f"{row.label} ({table.setting})" if several else row.label for table, row in rows]
    names, inches = bar_names(labels, width)
    about = _about(tables, [table for table, _ in rows], inches_of(width))
    made, axes = canvas(width, inches + 0.55 + ROW * about.count("\n"), font)
    scale = 100.0 if tables[0].share else 1.0
    for place, (table, row) in enumerate(rows):
        own = row.difference
        assert own is not None
        each = _of_pairs(table, row) if found.paired else []
        axes.plot(
            [scale * d for d in each], [place] * len(each), linestyle="none", marker="o",
            markersize=3.4, markeredgewidth=0.5, markeredgecolor=GROUND, color=COLOURS[5], zorder=4,
        )  # fmt: skip
        if not math.isnan(own.low):
            ends = [own.low * scale, own.high * scale]
            axes.plot(ends, [place] * 2, color=COLOURS[0], linewidth=1.6, solid_capstyle="butt")
        axes.plot(
            [own.mean * scale], [place], marker="D", markersize=4.5, color=COLOURS[0], zorder=5
        )
        p = own.holm
        text = "" if math.isnan(p) else f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
        axes.annotate(
            text, (1, place), (3, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center_baseline", **words(font, SMALL - 0.5),
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.7)
    name_bars(axes, names)
    axes.set_xlabel(about, parse_math=False)
    return made


def _about(tables: Sequence[Table], shown: Sequence[Table], inches: float) -> str:
    """What is drawn, and in which unit, in lines that fit below the axes."""
    title = tables[0].title.replace(" (%)", "")
    unit = "\n(percentage points)" if tables[0].share else ""
    bases = list(dict.fromkeys(table.baseline for table in shown))
    return wrapped(f"{title}: difference to {' or '.join(bases)}", 0.8 * inches) + unit


def _of_pairs(table: Table, row: Row) -> list[float]:
    """Each pair's difference to the baseline, by seeds; none where a side has no figure."""
    (base,) = [other for other in table.rows if other.label == table.baseline]
    theirs = dict(zip(base.seeds, base.values, strict=True))
    ours = zip(row.seeds, row.values, strict=True)
    found = [value - theirs[seed] for seed, value in ours if seed in theirs]
    return [value for value in found if not math.isnan(value)]

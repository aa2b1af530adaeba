"""Chart of a split: clients × classes, with a bubble for each number of samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protofl.system.formatting import shortened
from protofl_workbench.plots.style import COLOURS, FAINT, INK, TEXT, Style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

CELLS = 14.0
"""Inches of the longer side of the chart, as long as its cells can be seen."""


def split_figure(counts: npt.NDArray[np.int64] | Tensor, classes: list[str], title: str) -> Figure:
    """Draw the number of samples of each class (y) at each client (x).

    The area of a bubble is proportional to the number of samples, as in FedTGP's Figures 7-9.

    Args:
        counts: Samples of each client and class, [M, C].
        classes: Names of the C classes.
        title: Title of the figure.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    table = np.asarray(counts)
    cell = float(np.clip(CELLS / max(table.shape), 0.15, 0.42))
    wide, high = (float(np.clip(cell * count, 1.5, 40.0)) for count in table.shape)
    names = [shortened(name, 18) for name in classes]
    look = Style(wide + 1.5 + 0.08 * max(map(len, names)), "sans")
    heading = wrapped(title, look.inches)
    made, axes = look.canvas(high + 0.6 + 0.16 * heading.count("\n"))
    largest = int(table.max(initial=0))

    def width(number: float) -> float:
        """Return the diameter of a bubble in points; the smallest bubbles stay visible."""
        room: float = 72 * 0.92 * min(wide / table.shape[0], high / table.shape[1], 0.42)
        return max(room * math.sqrt(number / max(1, largest)), 1.1)

    x, y = np.nonzero(table)
    sizes = [width(number) ** 2 for number in table[x, y].tolist()]
    axes.scatter(x, y, s=sizes, color=COLOURS[0], linewidths=0, zorder=3)
    axes.set(xlim=(-0.5, len(table) - 0.5), ylim=(-0.5, len(names) - 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(max(1, int(wide / 0.4)), integer=True))
    shown = range(0, len(names), math.ceil(0.13 * len(names) / high))
    axes.set_yticks(shown, [names[c] for c in shown], parse_math=False)
    axes.tick_params(length=0)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_title(heading, loc="left", **look.text(TEXT))
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
            title="samples", frameon=False, fontsize=TEXT, labelspacing=2.2, handletextpad=1.2,
        )  # fmt: skip
        for text in (key.get_title(), *key.get_texts()):
            text.set(fontsize=TEXT, color=INK)
    return made


def _round_numbers(largest: int) -> list[int]:
    """Return up to three round numbers: near the largest, about a third, and about a tenth."""
    numbers = []
    for value in (largest, largest * 0.35, largest * 0.1):
        if value >= 1:
            unit = 10 ** math.floor(math.log10(value))
            numbers.append(int(value // unit) * unit)
    return sorted(set(numbers), reverse=True)

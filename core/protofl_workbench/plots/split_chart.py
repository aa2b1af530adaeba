"""A picture of a split: clients × classes, a bubble for every number of samples."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from protofl.system.formatting import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

INK, FAINT, BUBBLE = "#2b2b2b", "#e6e6ea", "#2f6db3"


def draw_split(
    counts: npt.NDArray[np.int64] | Tensor, classes: list[str], title: str, path: str | Path
) -> None:
    """Write `split_figure` as a PNG.

    Args:
        counts: Samples [M, C] of each client and class.
        classes: Names of the C classes.
        title: The picture's heading.
        path: The PNG file to write.
    """
    figure = split_figure(counts, classes, title)
    figure.savefig(path, format="png", metadata={"Software": None})


def split_figure(counts: npt.NDArray[np.int64] | Tensor, classes: list[str], title: str) -> Figure:
    """Draw the number of samples of every class (y) at every client (x).

    A bubble's area is proportional to the number of samples, as in FedTGP's Figures 7-9; the
    largest just fits its cell, and the smallest are kept large enough to be seen.

    Args:
        counts: Samples [M, C] of each client and class.
        classes: Names of the C classes.
        title: The picture's heading.
    """
    from matplotlib.figure import Figure  # the figure alone: pyplot's global state is not touched

    table = np.asarray(counts)
    num_clients, num_classes = table.shape
    names = [shortened(name, 18) for name in classes]
    largest = int(table.max(initial=0))

    # Everything is laid out in inches, so that cells stay square up to 100 clients × 200 classes;
    # beyond, cells are squeezed rather than the picture made endless.
    cell = float(np.clip(14.0 / max(num_clients, num_classes), 0.15, 0.42))
    font = float(np.clip(cell * 72 * 0.68, 6.0, 9.0))
    plot_w = float(np.clip(cell * num_clients, 1.5, 40.0))
    plot_h = float(np.clip(cell * num_classes, 1.5, 40.0))
    heading = _wrapped(title, plot_w)
    left = 0.5 + 0.0085 * font * max(len(name) for name in names)
    right, bottom, top = 1.3, 0.55, 0.3 + 0.2 * len(heading)
    width, height = left + plot_w + right, bottom + plot_h + top
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white")
    axes = figure.add_axes((left / width, bottom / height, plot_w / width, plot_h / height))

    # Bubbles. Sizes are squared diameters in points, so proportional to the area.
    step_x, step_y = plot_w / num_clients, plot_h / num_classes
    biggest = (72 * 0.92 * min(step_x, step_y, 0.42)) ** 2

    def size(number: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        area = biggest * np.asarray(number, dtype=np.float64) / max(largest, 1)
        visible: npt.NDArray[np.float64] = np.maximum(area, 1.2)
        return visible

    client, label = np.nonzero(table)
    axes.scatter(client, label, s=size(table[client, label]), c=BUBBLE, linewidths=0, zorder=3)

    # Axes: a line through every bubble, as many labels as fit.
    axes.set_xlim(-0.5, num_clients - 0.5)
    axes.set_ylim(-0.5, num_classes - 0.5)
    every_x = _every(step_x, 0.012 * font * len(str(num_clients)) + 0.04)
    every_y = _every(step_y, 1.25 * font / 72)
    shown = range(0, num_classes, every_y)
    axes.set_xticks(range(0, num_clients, every_x))
    axes.set_yticks(shown, [names[c] for c in shown], parse_math=False)
    axes.tick_params(length=0, labelsize=font, labelcolor=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color("#c8c8ce")
    axes.set_xlabel("client", color=INK, fontsize=10)
    axes.set_ylabel("class", color=INK, fontsize=10)
    figure.text(
        left / width,
        1 - 0.16 / height,
        "\n".join(heading),
        fontsize=11,
        fontweight="bold",
        color=INK,
        va="top",
        parse_math=False,
    )

    # Legend: up to three sizes, round numbers, in axes of their own whose unit is an inch.
    key_w = right - 0.08
    key = figure.add_axes(
        ((left + plot_w + 0.08) / width, bottom / height, key_w / width, plot_h / height)
    )
    key.set(xlim=(0, key_w), ylim=(plot_h, 0))
    key.axis("off")
    key.text(0.06, 0.02, "samples", fontsize=9, color=INK, va="top")
    y = 0.24
    for number in _legend_numbers(largest):
        area = size(number)
        tall = max(float(np.sqrt(area)) / 72, 0.13)
        y += tall / 2
        key.scatter(0.27, y, s=area, c=BUBBLE, linewidths=0)
        key.text(0.56, y, f"{number:,}", fontsize=9, color=INK, va="center_baseline")
        y += tall / 2 + 0.08
    return figure


def _every(step: float, needed: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, … such that every n-th label has the room it needs."""
    n, exponent = 1, 0
    while n * step < needed:
        exponent += 1
        n = (1, 2, 5)[exponent % 3] * 10 ** (exponent // 3)
    return n


def _legend_numbers(largest: int) -> list[int]:
    """Up to three round numbers: the largest round one in reach, about a third, about a tenth."""
    numbers = []
    for share in (1.0, 0.35, 0.1):
        value = largest * share
        if value >= 1:
            unit = 10 ** math.floor(math.log10(value))
            numbers.append(int(value // unit) * unit)
    return sorted(set(numbers), reverse=True)


def _wrapped(title: str, plot_w: float) -> list[str]:
    """The title in lines that fit over the plot and the legend."""
    return textwrap.wrap(title, max(20, int((plot_w + 1.2) / 0.095))) or [""]

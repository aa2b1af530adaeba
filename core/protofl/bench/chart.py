"""A chart of a benchmark: seconds a round of every case, with their spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INK, FAINT = "#2b2b2b", "#e6e6ea"
COLOURS = {"protofl": "#2f6db3", "against": "#c8702a"}


def draw(result: dict[str, Any], path: str | Path) -> None:
    """Draw the median, the smallest and the largest seconds of every case as a PNG.

    The axis is logarithmic, so that equal distances are equal ratios.

    Args:
        result: As `protofl.bench.measure.measure` returns it.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    rows = result["cases"]
    labels = {"protofl": "protofl", "against": result["against"]}
    sides = [side for side in labels if any(row[side] for row in rows)]
    left, right, bottom, top = 2.0, 0.9, 0.6, 0.55
    plot_w, plot_h = 5.4, 0.42 * len(rows) + 0.1
    width, height = left + plot_w + right, bottom + plot_h + top
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white")
    axes = figure.add_axes((left / width, bottom / height, plot_w / width, plot_h / height))
    axes.set_xscale("log")
    for side in sides:
        shift = 0.0 if len(sides) == 1 else (-0.16 if side == "protofl" else 0.16)
        for number, row in enumerate(rows):
            if row[side] is None:
                continue
            s, y = row[side]["seconds"]["total"], number + shift
            axes.plot([s["min"], s["max"]], [y, y], color=COLOURS[side], linewidth=2, zorder=3)
            axes.plot(
                [s["median"]], [y], "o", color=COLOURS[side], markersize=6, zorder=4,
                label=labels[side] if number == 0 else None,
            )  # fmt: skip
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.tick_params(length=0, labelsize=9, labelcolor=INK, which="both")
    axes.xaxis.set_major_formatter(FuncFormatter(_seconds))
    axes.xaxis.set_minor_formatter(FuncFormatter(_few))
    axes.grid(axis="x", which="both", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_color("#c8c8ce")
    axes.set_xlabel(
        "seconds a round: median, smallest and largest (logarithmic)", color=INK, fontsize=9
    )
    for number, row in enumerate(rows):
        if row["ratio"]:
            axes.text(
                1.015, number, f"{row['ratio']['median']:.2f}×", color=INK, fontsize=9,
                va="center", transform=axes.get_yaxis_transform(),
            )  # fmt: skip
    if len(sides) > 1:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=9
        )
    figure.savefig(path, format="png", metadata={"Software": None})


def _seconds(value: float, position: int | None = None) -> str:
    return f"{value:g}"


def _few(value: float, position: int | None = None) -> str:
    """Labels at 2 and 5 of every decade alone."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""

"""The look of a figure in a paper: widths of columns, type, colours that can be told apart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protofl.errors import unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches: a column of a page with two, and the whole page."""

FONTS = {"serif": ["STIXGeneral", "DejaVu Serif"], "sans": ["DejaVu Sans"]}
"""Families that come with matplotlib, so that a figure is the same on every machine."""

INK, FAINT, GROUND = "#1a1a1a", "#dddddd", "#ffffff"
"""All but curves and bars has one of these; a page in the dark may put others in their place."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
"""Okabe and Ito (2008) without black and yellow, and a violet: apart for the colour-blind."""

MARKERS = (
    ("o", 3.2),
    ("s", 3.0),
    ("^", 3.8),
    ("D", 2.8),
    ("v", 3.8),
    ("P", 4.4),
    ("X", 4.4),
    ("<", 3.8),
)
LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)), (0, (8, 2)))
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "oooo")
"""Markers with sizes that look alike, lines and hatches tell curves and bars apart in grey."""

TEXT, SMALL = 8.0, 7.0
"""Points of titles and axes, and of ticks and legends."""

ROW = 0.16
"""Inches of a line of a legend."""


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and line of a figure's n-th curve; none comes twice in 280."""
    marker, size = MARKERS[number % len(MARKERS)]
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": marker,
        "linestyle": LINES[number % len(LINES)],
        "linewidth": 1.2,
        "markersize": size,
        "markeredgewidth": 0.0,
    }


def bar_style(number: int) -> dict[str, Any]:
    """Colour and hatch of a figure's n-th kind of bar."""
    return {
        "facecolor": COLOURS[number % len(COLOURS)],
        "edgecolor": GROUND,
        "hatch": HATCHES[number % len(HATCHES)],
        "linewidth": 0.0,
    }


def canvas(
    width: str | float, height: float, font: str, labels: Sequence[str] = ()
) -> tuple[Figure, Axes]:
    """An empty figure with axes.

    It is a `Figure` by itself, without pyplot's global state, so that threads may draw.

    Args:
        width: ``column``, ``page``, or inches.
        height: Inches, without the legend.
        font: ``serif`` or ``sans``.
        labels: What will stand in a legend above the axes, for which the figure is made taller.

    Raises:
        UsageError: There is no such width or font.
    """
    from matplotlib.figure import Figure

    inches = inches_of(width)
    height += ROW * sum(map(lines_of, legend_rows(inches, labels)))
    figure = Figure(figsize=(inches, height), dpi=200, facecolor=GROUND)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
    axes = figure.add_subplot()
    dress(axes, font)
    return figure, axes


def lines_of(row: Sequence[str]) -> int:
    """How many lines texts beside each other have."""
    return max(text.count("\n") + 1 for text in row)


def height_of(width: str | float) -> float:
    """The usual height of axes with curves: wide pages are flatter than columns."""
    inches = inches_of(width)
    return inches * (0.64 if inches < 5 else 0.40)


def inches_of(width: str | float) -> float:
    """The width in inches.

    Raises:
        UsageError: There is no such width.
    """
    if isinstance(width, (int, float)):
        return float(width)
    if width not in WIDTHS:
        raise unknown("width", width, WIDTHS)
    return WIDTHS[width]


def family(font: str) -> list[str]:
    """The families of a font.

    Raises:
        UsageError: There is no such font.
    """
    if font not in FONTS:
        raise unknown("font", font, FONTS)
    return FONTS[font]


def dress(axes: Axes, font: str) -> None:
    """Thin axes, a faint grid, ticks and labels in one type."""
    names = family(font)
    axes.set_facecolor("none")
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=INK, linewidth=0.6)
    axes.tick_params(
        width=0.6, length=2.5, color=INK, labelcolor=INK, labelsize=SMALL, labelfontfamily=names
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontfamily=names, fontsize=TEXT, color=INK)
        axis.offsetText.set(fontfamily=names, fontsize=SMALL, color=INK)
        if font == "serif":
            axis.offsetText.set_math_fontfamily("stix")


def words(font: str, size: float = SMALL) -> dict[str, Any]:
    """What a text is written with; signs of dollars in it are that, and no formulas."""
    return {"fontfamily": family(font), "fontsize": size, "color": INK, "parse_math": False}


def wrapped(label: str, inches: float) -> str:
    """A label in lines that fit into a width."""
    room = max(8, int(inches * 72 / (0.5 * SMALL)))
    return "\n".join(textwrap.wrap(label, room)) or label


def legend_rows(inches: float, labels: Sequence[str]) -> list[list[str]]:
    """The rows of a legend in a figure of a width, equally long as far as they can be."""
    if not labels:
        return []
    fitting = [wrapped(label, inches - 0.6) for label in labels]
    longest = max(len(line) for label in fitting for line in label.split("\n"))
    fit = max(1, int((inches * 72 - 12) // (longest * 0.5 * SMALL + 34)))
    count = -(-len(fitting) // -(-len(fitting) // fit))
    # matplotlib fills a legend column by column
    down = -(-len(fitting) // count)
    return [fitting[row::down] for row in range(down)]


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], font: str) -> None:
    """A legend above the axes, in as many columns as fit.

    Args:
        figure: The figure, of a `canvas` that knows of the labels.
        handles: Lines or bars.
        labels: What they are.
        font: ``serif`` or ``sans``.
    """
    from matplotlib.font_manager import FontProperties

    rows = legend_rows(figure.get_figwidth(), labels)
    fitting = [wrapped(label, figure.get_figwidth() - 0.6) for label in labels]
    made = figure.legend(
        list(handles),
        # matplotlib leaves out what begins with a line below
        ["\u200b" * label.startswith("_") + label for label in fitting],
        loc="outside upper center",
        ncols=max(map(len, rows)),
        frameon=False,
        prop=FontProperties(family=family(font), size=SMALL),
        handlelength=2.6,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    for text in made.get_texts():
        text.set(color=INK, parse_math=False)


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Bars that lie, with their names at the left, the first at the top.

    Args:
        axes: The axes.
        names: What bar n, at height n, is; as `bar_names` gives them.
    """
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def bar_names(names: Sequence[str], width: str | float) -> tuple[list[str], float]:
    """Names of bars in lines that leave room for bars, and the inches that they take."""
    found = [wrapped(name, 0.42 * inches_of(width)) for name in names]
    return found, sum(max(0.21, 0.13 * lines_of([name]) + 0.05) for name in found)


def shades(*colours: str) -> Any:  # noqa: ANN401 - a map of colours
    """Return a map from colour to colour; grey where there is no number."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", colours).with_extremes(bad=FAINT)

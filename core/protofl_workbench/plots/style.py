"""The style of figures for papers: widths of columns, fonts, and distinguishable colours."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from protofl.errors import unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches of one column of a two-column page, and of the whole page."""

PAPERS = {
    "icml-column": (3.25, 8.0, 7.0),
    "icml-text": (6.75, 8.0, 7.0),
    "neurips-text": (5.5, 9.0, 8.0),
    "iclr-text": (5.5, 9.0, 8.0),
    "cvpr-column": (3.28, 8.0, 7.0),
    "cvpr-text": (6.875, 8.0, 7.0),
    "eccv-text": (4.8, 8.0, 7.0),
    "ieee-column": (3.5, 8.0, 8.0),
    "ieee-text": (7.16, 8.0, 8.0),
    "acm-column": (3.33, 8.0, 7.0),
    "acm-text": (7.0, 8.0, 7.0),
    "aaai-column": (3.3, 9.0, 8.0),
    "aaai-text": (7.0, 9.0, 8.0),
    "jmlr-text": (6.0, 10.0, 9.0),
    "tmlr-text": (6.5, 9.0, 8.0),
}
"""Widths by name: inches, points of titles and axes, points of ticks and legends.

Inches are those of the LaTeX style of the venue: ``\\columnwidth`` and ``\\textwidth``. Titles and
axes are a point smaller than the captions; IEEE asks for letters of 8 points.
"""

FONTS = {"serif": ["STIXGeneral", "DejaVu Serif"], "sans": ["DejaVu Sans"]}
"""Font families that come with matplotlib, so that a figure is the same on every machine."""

INK, FAINT, GROUND = "#1a1a1a", "#dddddd", "#ffffff"
"""Colours of everything except curves and bars; a dark page replaces them."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito (2008) without black and yellow, plus Tol's wine: distinct for the colour-blind."""

MARKERS = (("o", 3.2), ("s", 3.0), ("^", 3.8), ("D", 2.8), ("v", 3.8), ("P", 4.4), ("X", 4.4),
           ("<", 3.8))  # fmt: skip
LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)), (0, (8, 2)))
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "oooo")
"""Markers with sizes that look equal, lines and hatches distinguish curves and bars in grey."""

TEXT, SMALL = 8.0, 7.0
"""Points of titles and axes, and of ticks and legends, if the width is not that of a paper."""

ROW = 0.16
"""Inches of one line of a legend."""


class StyleOptions(TypedDict, total=False):
    """Keyword arguments that all figures take, see `Style`."""

    width: str | float
    font: str


@dataclass(frozen=True)
class Style:
    """The size and font of a figure.

    Attributes:
        width: ``column`` (3.3 in), ``page`` (6.9 in), inches, or a name of `PAPERS`
            (``icml-column``), which has sizes of letters too.
        font: ``serif`` or ``sans``.

    Raises:
        UsageError: The width or font is unknown.
    """

    width: str | float = "column"
    font: str = "serif"

    def __post_init__(self) -> None:
        """Check the names."""
        if isinstance(self.width, str) and self.width not in {**WIDTHS, **PAPERS}:
            raise unknown("width", self.width, [*WIDTHS, *PAPERS])
        if self.font not in FONTS:
            raise unknown("font", self.font, FONTS)

    @property
    def inches(self) -> float:
        """Width in inches."""
        if not isinstance(self.width, str):
            return float(self.width)
        return PAPERS[self.width][0] if self.width in PAPERS else WIDTHS[self.width]

    @property
    def large(self) -> float:
        """Points of titles and axes."""
        return PAPERS[self.width][1] if self.width in PAPERS else TEXT

    @property
    def small(self) -> float:
        """Points of ticks and legends."""
        return PAPERS[self.width][2] if self.width in PAPERS else SMALL

    @property
    def height(self) -> float:
        """Default height of axes with curves in inches: wide figures are flatter."""
        return self.inches * (0.64 if self.inches < 5 else 0.40)

    def text(self, size: float | None = None) -> dict[str, Any]:
        """Return the properties of a text, by default a small one; dollar signs are no formulas."""
        family = FONTS[self.font]
        points = self.small if size is None else size
        return {"fontfamily": family, "fontsize": points, "color": INK, "parse_math": False}

    def canvas(self, height: float, labels: Sequence[str] = ()) -> tuple[Figure, Axes]:
        """Return an empty figure with axes; it does not use the global state of pyplot.

        Args:
            height: Inches without the legend.
            labels: Labels of a legend above the axes, which makes the figure taller.
        """
        from matplotlib.figure import Figure

        height += ROW * self.small / SMALL * sum(map(lines_of, self._legend_rows(labels)))
        figure = Figure(figsize=(self.inches, height), dpi=200, facecolor=GROUND)
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
        axes = figure.add_subplot()
        self.dress(axes)
        return figure, axes

    def dress(self, axes: Axes) -> None:
        """Give axes the lines, letters and colours of all figures."""
        names = FONTS[self.font]
        axes.set_facecolor("none")
        axes.grid(color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set(color=INK, linewidth=0.6)
        axes.tick_params(
            width=0.6,
            length=2.5,
            color=INK,
            labelcolor=INK,
            labelsize=self.small,
            labelfontfamily=names,
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set(fontfamily=names, fontsize=self.large, color=INK)
            axis.offsetText.set(fontfamily=names, fontsize=self.small, color=INK)
            if self.font == "serif":
                axis.offsetText.set_math_fontfamily("stix")

    def legend(self, figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
        """Add a legend above the axes, in as many columns as fit.

        Args:
            figure: A figure of `canvas` with these labels.
            handles: Lines or bars.
            labels: Their labels.
        """
        from matplotlib.font_manager import FontProperties

        made = figure.legend(
            list(handles),
            # matplotlib leaves out labels that begin with an underscore
            ["\u200b" * label.startswith("_") + label for label in self._legend_labels(labels)],
            loc="outside upper center",
            ncols=max(map(len, self._legend_rows(labels))),
            frameon=False,
            prop=FontProperties(family=FONTS[self.font], size=self.small),
            handlelength=2.6,
            columnspacing=1.4,
            borderaxespad=0.2,
        )
        for text in made.get_texts():
            text.set(color=INK, parse_math=False)

    def _legend_labels(self, labels: Sequence[str]) -> list[str]:
        return [wrapped(label, self.inches - 0.6, self.small) for label in labels]

    def _legend_rows(self, labels: Sequence[str]) -> list[list[str]]:
        """Return the rows of a legend, equally long if possible."""
        if not labels:
            return []
        fitting = self._legend_labels(labels)
        longest = max(len(line) for label in fitting for line in label.split("\n"))
        fit = max(1, int((self.inches * 72 - 12) // (longest * 0.5 * self.small + 34)))
        columns = -(-len(fitting) // -(-len(fitting) // fit))
        down = -(-len(fitting) // columns)  # matplotlib fills a legend column by column
        return [fitting[row::down] for row in range(down)]

    def bar_names(self, names: Sequence[str]) -> tuple[list[str], float]:
        """Return names of bars in lines that leave room for the bars, and their inches."""
        lines = [wrapped(name, 0.42 * self.inches, self.small) for name in names]
        scale = self.small / SMALL
        return lines, sum(scale * max(0.21, 0.13 * lines_of([name]) + 0.05) for name in lines)


def line_style(number: int) -> dict[str, Any]:
    """Return colour, marker and line of the n-th curve; 280 curves differ."""
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
    """Return colour and hatch of the n-th kind of bar."""
    return {
        "facecolor": COLOURS[number % len(COLOURS)],
        "edgecolor": GROUND,
        "hatch": HATCHES[number % len(HATCHES)],
        "linewidth": 0.0,
    }


def lines_of(row: Sequence[str]) -> int:
    """Return the number of lines of texts next to each other."""
    return max(text.count("\n") + 1 for text in row)


def wrapped(label: str, inches: float, points: float = SMALL) -> str:
    """Return a label in lines that fit into a width, with letters of a size in points."""
    room = max(8, int(inches * 72 / (0.5 * points)))
    return "\n".join(textwrap.wrap(label, room)) or label


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Label horizontal bars, the first at the top.

    Args:
        axes: The axes.
        names: Names of the bars at heights 0, 1, …, from `Style.bar_names`.
    """
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def hide_frame(axes: Axes) -> None:
    """Remove ticks, grid and spines."""
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def shades(*colours: str) -> Any:  # noqa: ANN401 - a colour map
    """Return a map from colour to colour; grey where there is no number."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", [*colours]).with_extremes(bad=FAINT)


def class_colours(count: int) -> list[Any]:
    """Return a colour for each class: up to ten distinct ones, or a colour wheel."""
    ten = (*COLOURS, "#661100", "#ddcc77", "#4b1d6f")  # any two differ for dichromats too
    if count <= len(ten):
        return list(ten[:count])
    import matplotlib
    import numpy as np

    return list(matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, count)))

"""The parts of a page, and matplotlib figures as parts of it, for light and dark backgrounds.

The template knows only these parts, and nothing about runs.
"""

from __future__ import annotations

import base64
import colorsys
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from protofl.system.formatting import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Fact:
    """A key figure with a short explanation."""

    label: str
    value: str
    note: str = ""
    lead: bool = False
    """True to show the figure large."""
    below: bool = False
    """True to show it in the colour of a warning: it is not better than the majority guess."""


@dataclass(frozen=True)
class PageTable:
    """A table with a caption.

    Attributes:
        caption: Title of the table.
        columns: Headings; the first column names the rows.
        rows: Cells as text, one for each column.
        numbers: Columns of numbers, which are right-aligned.
        sortable: Whether a reader can sort the table.
        folded: Whether the table is closed until a reader opens it.
        words: Columns of long text, which is wrapped.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    sortable: bool = False
    folded: bool = False
    words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture with a description.

    Attributes:
        title: Heading.
        drawing: The SVG, or the ``data:`` address of pixels.
        alternative: Description for readers who do not see the picture.
        caption: Text below the picture.
        on_paper: Whether the colours stay on a light background, as for photographs and colour
            scales.
    """

    title: str
    drawing: str
    alternative: str
    caption: str = ""
    on_paper: bool = False

    @property
    def is_drawn(self) -> bool:
        """True for SVG, False for pixels."""
        return self.drawing.startswith("<svg")

    @property
    def is_wide(self) -> bool:
        """True if the drawing scrolls sideways on narrow screens."""
        return self.drawing.startswith("<svg") and 'class="spread"' in self.drawing[:200]


@dataclass(frozen=True)
class Command:
    """A shell command and its purpose."""

    purpose: str
    text: str


Part = Fact | PageTable | Picture | Command | str
"""A string is a paragraph."""


@dataclass
class Section:
    """A part of the page under a heading.

    Attributes:
        title: The heading.
        parts: Content, in order.
        inner: Subsections, which are closed until a reader opens one.
    """

    title: str
    parts: list[Part] = field(default_factory=list)
    inner: list[Section] = field(default_factory=list)
    anchor: str = ""

    def __bool__(self) -> bool:
        """Return True if the section has content."""
        return bool(self.parts or self.inner)


@dataclass
class Page:
    """A page.

    Attributes:
        title: Heading.
        kicker: Words above the heading.
        lead: Summary in a sentence or two.
        state: State of unfinished runs; empty if all are finished.
        facts: Key figures.
        sections: Sections.
        foot: Last line.
    """

    title: str
    kicker: str
    lead: str
    state: str
    facts: list[Fact]
    sections: list[Section]
    foot: str


LARGEST = 200_000
"""Bytes of SVG above which a figure becomes pixels: many points take less space so."""

WIDE = 300
"""Points of width above which a figure scrolls on a phone, because it would be too small."""

_COLOUR = re.compile(r"(?<!url\()#[0-9a-fA-F]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"font: ([^;]*?px) [^;]*")  # an older matplotlib
_FAMILY = re.compile(r"font-family: [^;]*;? ?")


class Drawings:
    """The figures of one page: unique ids, and all colours in use."""

    def __init__(self) -> None:
        self._numbers = count()
        self._colours: set[str] = set()

    def picture(
        self, title: str, figure: Figure, caption: str, *, on_paper: bool = False
    ) -> Picture:
        """Return a figure as a picture whose description is its caption."""
        return Picture(title, self.inline(figure), f"{title}. {caption}", caption, on_paper)

    def inline(self, figure: Figure) -> str:
        """Return a figure as an SVG element, or as the ``data:`` address of its pixels.

        Ids and colours are changed in attributes only, so any text of the figure stays as it is.
        Wide figures scroll on phones.

        Args:
            figure: The figure. Hatches are removed: they would be most of the text, and on a screen
                colours are enough.
        """
        from matplotlib.patches import Patch

        from protofl_workbench.plots.figure_files import svg

        for patch in figure.findobj(Patch):
            patch.set_hatch("")
        text = svg(figure, outlines=False)
        if len(text) > LARGEST:
            return _pixels(figure)
        root = ElementTree.fromstring(visible(text))  # XML has no control characters
        box = root.get("viewBox", "0 0 0 0")
        width = float(box.split()[2])
        root.attrib = {"viewBox": box, "focusable": "false"}
        if width > WIDE:
            root.attrib |= {"class": "spread", "style": f"min-width: {0.85 * width:.0f}px"}
        for parent in [*root.iter()]:
            for child in [*parent]:
                if _name(child.tag) in ("metadata", "style"):
                    parent.remove(child)
        self._rewrite(root)
        return ElementTree.tostring(root, encoding="unicode")

    def _rewrite(self, root: ElementTree.Element) -> None:
        """Make ids unique on the page, replace colours by variables, and remove fonts."""
        mark = f"f{next(self._numbers)}-"
        values = [value for element in root.iter() for value in element.attrib.values()]
        used = {name for value in values for name in _REFERENCE.findall(value)}
        used |= {value[1:] for value in values if re.fullmatch(r"#[^#\s]+", value)}
        for element in root.iter():
            element.tag = _name(element.tag)
            if element.tag not in ("text", "tspan"):
                element.text = element.tail = None  # line breaks
            attributes, element.attrib = element.attrib, {}
            for key, value in attributes.items():
                key = _name(key)
                if key == "id":
                    if value in used:
                        element.set(key, mark + value)
                    continue
                if key == "href":
                    value = re.sub(r"^#", f"#{mark}", value)
                elif key != "class":
                    value = _REFERENCE.sub(rf"url(#{mark}\1)", value)
                    value = _COLOUR.sub(self._variable, value)
                if key == "style":
                    value = _FAMILY.sub("", _FONT.sub(r"font-size: \1", value))
                element.set(key, value)

    def _variable(self, match: re.Match[str]) -> str:
        colour = match[0].lower()
        self._colours.add(colour)
        return f"var(--x{colour[1:]})"

    @property
    def light(self) -> str:
        """CSS of all colours as they were drawn."""
        return "".join(f"--x{c[1:]}:{c};" for c in sorted(self._colours))

    @property
    def dark(self) -> str:
        """CSS of all colours for a dark background."""
        return "".join(f"--x{c[1:]}:{in_the_dark(c)};" for c in sorted(self._colours))


def _name(name: str) -> str:
    """Return a tag or attribute without its namespace."""
    return name.rpartition("}")[2]


def _pixels(figure: Figure) -> str:
    from protofl_workbench.plots.figure_files import drawn

    content = drawn(figure, "png", transparent=False, **{"savefig.dpi": 160})
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def in_the_dark(colour: str) -> str:
    """Return a colour for a dark background: greys are inverted, others become lighter.

    Args:
        colour: ``#rrggbb``.
    """
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    hue, light, saturation = colorsys.rgb_to_hls(*parts)
    light = 0.95 - 0.85 * light if saturation < 0.1 else max(light, 0.65)
    rgb = colorsys.hls_to_rgb(hue, light, saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)

"""What a page is made of; the template knows these and nothing of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fact:
    """A figure that counts: what it is, the figure, and in a few words what to make of it."""

    label: str
    value: str
    note: str = ""
    lead: bool = False
    """Whether it is the first thing that a reader should see."""


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        caption: What it shows.
        columns: Its headings; the first column names the rows.
        rows: Cells as text, as many as there are columns.
        numbers: Columns of numbers, which are set to the right.
        marked: Rows that are set off.
        sortable: Whether a reader may want it in another order.
        folded: Whether it is closed until a reader opens it; then the caption is the handle.
        words: Columns of text that may be long, which is broken where it must be.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    sortable: bool = False
    folded: bool = False
    words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture: drawn lines (SVG) or pixels, what it shows in words, and its numbers.

    Attributes:
        title: Its heading.
        drawing: The SVG, or the ``data:`` address of pixels.
        alternative: What a reader who doesn't see it is told.
        caption: What stands below it.
        table: The numbers that it shows.
        broad: The same drawing for the width of two, where there is room for it.
        on_paper: Whether its colours are to stay what they are, on a light ground: those of a
            photograph, or of a scale of colours.
    """

    title: str
    drawing: str
    alternative: str
    caption: str = ""
    table: Table | None = None
    broad: str = ""
    on_paper: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether it is SVG rather than pixels."""
        return self.drawing.startswith("<svg")

    @property
    def is_wide(self) -> bool:
        """Whether it is moved sideways where there is little room."""
        return self.drawing.startswith("<svg") and 'class="spread"' in self.drawing[:200]


@dataclass(frozen=True)
class Command:
    """What one types in a shell, and what for."""

    what_for: str
    text: str
    folded: bool = False


Part = Fact | Table | Picture | Command | str
"""A string is a paragraph."""


@dataclass
class Section:
    """A part of the page under a heading.

    Attributes:
        title: The heading.
        parts: What stands in it, in order.
        inner: Sections of their own below it, which are closed until a reader opens one.
    """

    title: str
    parts: list[Part] = field(default_factory=list)
    inner: list[Section] = field(default_factory=list)
    anchor: str = ""

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.parts or self.inner)


@dataclass
class Page:
    """A whole page.

    Attributes:
        title: Its heading.
        kicker: A few words above it.
        lead: What it is about, in a sentence or two.
        state: Where it isn't finished, what it is.
        facts: The figures that count.
        sections: All else.
        foot: The last line.
    """

    title: str
    kicker: str
    lead: str
    state: str
    facts: list[Fact]
    sections: list[Section]
    foot: str

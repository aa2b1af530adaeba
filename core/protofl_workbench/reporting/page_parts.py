"""The parts of a page. The template knows only these parts, and nothing about runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fact:
    """A key figure with a short explanation."""

    label: str
    value: str
    note: str = ""
    lead: bool = False
    """True to show the figure large."""


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        caption: Title of the table.
        columns: Headings; the first column names the rows.
        rows: Cells as text, one for each column.
        numbers: Columns of numbers, which are right-aligned.
        marked: Highlighted rows.
        sortable: Whether a reader can sort the table.
        folded: Whether the table is closed until a reader opens it.
        words: Columns of long text, which is wrapped.
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
    """A picture with a description and its numbers.

    Attributes:
        title: Heading.
        drawing: The SVG, or the ``data:`` address of pixels.
        alternative: Description for readers who do not see the picture.
        caption: Text below the picture.
        table: The numbers in the picture.
        broad: The same drawing with double width, for wide screens.
        on_paper: Whether the colours stay on a light background, as for photographs and colour
            scales.
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
    folded: bool = False


Part = Fact | Table | Picture | Command | str
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

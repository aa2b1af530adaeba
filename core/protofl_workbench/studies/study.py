"""The definition of a study: rows, columns, options of runs, and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from protofl_workbench.studies.study_files import File

KindOfStudy = Literal["table", "curves", "bars", "account", "pictures"]
KINDS_OF_STUDY: dict[str, str] = {
    "table": "figures of runs, rows × columns",
    "curves": "a figure over rounds, one curve a row, a panel a column",
    "bars": "figures of runs as bars, beside the table",
    "account": "traffic and FLOPs of a round, without training",
    "pictures": "a picture a cell",
}

DRAWINGS: dict[str, str] = {
    "partition": "",
    "margins": "prototypes",
    "margin-curves": "prototypes",
    "distances": "prototypes",
    "alignment": "prototypes",
    "drift": "prototypes",
    "similarity": "prototypes",
    "prototypes": "prototypes",
    "features": "features",
    "images": "images",
}
"""Pictures of a cell, and the observations that they need."""


class OfImages(BaseModel):
    """Options of ``draw`` for ``picture = "images"``.

    Attributes:
        together: One picture, a line a cell, in place of one a cell with a line a round.
        rounds: The rounds, from 0; those among them that the run has.
        classes: So many classes: the first, or of a client its commonest.
        client: A client, whose own images are the first line.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    together: bool = False
    rounds: list[NonNegativeInt] = []
    classes: PositiveInt | None = None
    client: NonNegativeInt | None = None


EMPTY = "–"
"""A cell that the paper leaves empty."""

UNKNOWN = "?"
"""A cell whose figure the paper does not print."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A figure as a paper prints it.

    Attributes:
        text: The figure as printed.
        mean: Its number.
        std: What stands behind ±; None for nothing.
        decimals: Digits behind its point.
    """

    text: str
    mean: float
    std: float | None
    decimals: int


_FIGURE = re.compile(
    r"(?P<mean>[-+−]?\d+(?:\.(?P<digits>\d+))?)(?:±(?P<std>\d+(?:\.\d+)?))?(?P<unit>[A-Za-z%]*)[†‡*]*"
)


def published_figure(text: str) -> Published | None:
    """Parse a printed figure, ``86.82±0.26``, ``2.05M``, ``99.81B†``; None for other text."""
    found = _FIGURE.fullmatch(text)
    if found is None:
        return None
    mean, std = found["mean"].replace("−", "-"), found["std"]
    spread = float(std) if std else None
    return Published(text, float(mean), spread, len(found["digits"] or ""))


class Figure(BaseModel):
    """The number that is read from a run.

    Attributes:
        read: How, see `protofl_workbench.studies.study_figures.READERS`.
        of: The column of the record that it is read from; empty for the reader's own.
        target: What has to be reached, for ``rounds-to`` and the like.
        round: The round, from 0; None for the reader's own.
        error: Whether 1 − x is read of an accuracy x.
        unit: ``%``, ``K``, ``M``, ``B``, ``MB``, ``MiB``, ``min``, or none; None for the
            reader's own.
        words: What it is, for titles; empty for the reader's own.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    read: str = "best"
    of: str = ""
    target: float | None = None
    round: int | None = None
    error: bool = False
    unit: str | None = None
    words: str = ""


USUAL = Figure()
"""The default figure."""


@dataclass(frozen=True)
class Line:
    """A row or a column; its options override those of the study.

    Attributes:
        name: Its name on the command line.
        label: Its name in tables.
        group: A heading above several columns; empty for none.
        options: Options of the run, as a recipe has them.
        figure: What is read here, where it differs from the study's.
        figures: Of a row, {column: what is read there}.
        formula: In place of a run: arithmetic over the study's constants.
        note: A word below the table.
    """

    name: str
    label: str
    group: str = ""
    options: Values = field(default_factory=dict)
    figure: Figure | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    formula: str = ""
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """Replacements of the options of cells.

    Attributes:
        name: Its name.
        about: What it does, in words.
        options: {option: its value, or {value that a cell has: value in its place}}, where ``*``
            stands for all others; ``set`` has such a table for options of plugins.
    """

    name: str
    about: str = ""
    options: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: ``COLLECTION/NAME``, or the name of a file.
        title: What it shows.
        paper: Whose it is.
        place: Where it stands there: ``Table 1``.
        kind: What is made of it.
        figure: What is read of the cells.
        options: Options of all cells.
        rows: Its rows.
        columns: Its columns; one without a name where the study has none.
        published: {(row, column): the figure as printed, `EMPTY` or `UNKNOWN`}.
        scales: Smaller versions, by name; ``paper`` changes nothing.
        variants: Readings of the paper other than its equations, by name.
        variant: The one that is usual here; empty for the paper's equations.
        constants: Numbers for formulas.
        files: {file that the user has to give: what it is}; in options ``{NAME}`` stands for it.
        chosen: What was chosen where the paper leaves a value open.
        draw: Which picture, for ``pictures``.
        of_images: How pictures of images are drawn.
        origin: Distribution and version that it came from, or the file.
        text: The file.
        source: The same with what it extends, for errors.
    """

    name: str
    title: str
    rows: Mapping[str, Line]
    columns: Mapping[str, Line]
    paper: str = ""
    place: str = ""
    kind: KindOfStudy = "table"
    figure: Figure = USUAL
    options: Values = field(default_factory=dict)
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    variants: Mapping[str, Scale] = field(default_factory=dict)
    variant: str = ""
    constants: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    draw: str = ""
    of_images: OfImages = field(default_factory=OfImages)
    origin: str = ""
    text: str = field(default="", repr=False)
    source: File | None = field(default=None, repr=False, compare=False)

    @property
    def heading(self) -> str:
        """Paper, place and title in a line."""
        where = ", ".join(part for part in (self.paper, self.place) if part)
        return f"{where}: {self.title}" if where else self.title

    def figure_of(self, row: str, column: str) -> Figure:
        """Return the figure of a cell; ``{column}`` stands for the name of its column."""
        own = self.rows[row]
        beside = own.figures.get(column) or own.figure
        found = beside or self.columns[column].figure or self.figure
        return found.model_copy(update={"of": found.of.replace("{column}", column)})

    def is_empty(self, row: str, column: str) -> bool:
        """Return True if the paper leaves a cell empty."""
        return self.published.get((row, column)) == EMPTY

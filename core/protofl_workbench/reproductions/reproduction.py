"""The definition of a reproduction: rows, columns, options of runs, and figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

if TYPE_CHECKING:
    from protofl_workbench.reproductions.reproduction_files import File

KindOfReproduction = Literal["table", "curves", "bars", "account", "pictures", "benchmark"]
KINDS_OF_REPRODUCTION: dict[str, str] = {
    "table": "figures of runs, rows × columns",
    "curves": "a figure over rounds, one curve a row, a panel a column",
    "bars": "figures of runs as bars, beside the table",
    "account": "traffic and FLOPs of a round, without training",
    "pictures": "a picture a cell",
    "benchmark": "methods × settings, each method tuned alike and compared with local",
}

DRAWINGS: dict[str, str] = {
    "partition": "",
    "margins": "prototypes",
    "prototypes": "prototypes",
    "features": "features",
    "images": "images",
}
"""Pictures of a cell, and the observation that each needs."""


class OfImages(BaseModel):
    """Options of ``draw`` for ``picture = "images"``.

    Attributes:
        together: Draw one picture with a row for each cell, instead of one picture for each cell
            with a row for each round.
        rounds: Rounds to draw; rounds without images are left out.
        classes: Number of classes: the first ones, or the most frequent ones of `client`.
        client: Client whose own images are the first row.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    together: bool = False
    rounds: list[PositiveInt] = []
    classes: PositiveInt | None = None
    client: NonNegativeInt | None = None


class Tuning(BaseModel):
    """The table ``[tuning]`` of a benchmark: the search of each method in each setting.

    First every method tries the same learning rates. While the best one is the smallest or largest,
    a further one beyond it is tried. Then, with the best rate, the weight of a method is tried
    times each of ``factors``, and larger ones while the largest is the best. A candidate's score is
    the mean over ``search_seeds`` of its best validation accuracy; a diverged run makes it the
    worst.

    Attributes:
        search_seeds: Seeds of the tuning runs, which no final run has.
        rates: Learning rates that every method tries, in rising order.
        step: Factor between a rate or weight at the edge and the next one beyond it.
        steps: The most candidates that are added beyond an edge; 0 for none.
        factors: Factors of the method's weight, in rising order; 0 leaves its loss term out.
        seeds: Seeds of the final runs.
        rows: The rows that run by default; empty for all.
        weights: {row: {option: value that the factors multiply}}; an empty table says that the row
            has no weight. A row that is not listed has the first weight that its method declares
            (`weight_of` of ``benchmark/candidates.py``).
        columns: {setting: its own ``rates``}, where others fit its optimiser.
        scales: {scale: keys of this table that replace those above}.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=lambda n: n.replace("_", "-")
    )

    search_seeds: list[NonNegativeInt] = Field([100, 101, 102], min_length=1)
    rates: list[PositiveFloat] = Field(min_length=1)
    step: Annotated[float, Field(gt=1)] = 3.0
    steps: NonNegativeInt = 3
    factors: list[NonNegativeFloat] = []
    seeds: list[NonNegativeInt] = Field([0, 1, 2], min_length=1)
    rows: list[str] = []
    weights: dict[str, dict[str, float]] = {}
    columns: dict[str, list[PositiveFloat]] = {}
    scales: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        if both := sorted({*self.search_seeds} & {*self.seeds}):
            raise ValueError(f"seed {both[0]} of the tuning runs is also one of the final runs")
        if any(len(weight) > 1 for weight in self.weights.values()):
            raise ValueError("weights: one option a row")
        for name, values in {"rates": self.rates, "factors": self.factors, **self.columns}.items():
            if values != sorted(set(values)):
                raise ValueError(f"{name}: write the values in rising order")
        return self

    def of(self, column: str) -> Tuning:
        """Return the tuning in a setting."""
        rates = self.columns.get(column, self.rates)
        return self.model_copy(update={"rates": rates, "columns": {}})

    def at(self, scale: str) -> Tuning:
        """Return the tuning at a scale."""
        given = self.model_dump(by_alias=True) | {"scales": {}}
        return Tuning.model_validate(given | self.scales.get(scale, {}))


EMPTY = "–"
"""A cell that the paper leaves empty."""

UNKNOWN = "?"
"""A cell whose figure the paper does not print."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class PublishedFigure:
    """A figure as a paper prints it.

    Attributes:
        text: The figure as printed.
        mean: The number.
        std: The number after ±, if any.
        decimals: Number of decimals.
    """

    text: str
    mean: float
    std: float | None
    decimals: int


_FIGURE = re.compile(
    r"(?P<mean>[-+−]?\d+(?:\.(?P<digits>\d+))?)(?:±(?P<std>\d+(?:\.\d+)?))?(?P<unit>[A-Za-z%]*)[†‡*]*"
)


def published_figure(text: str) -> PublishedFigure | None:
    """Parse a printed figure, ``86.82±0.26``, ``2.05M``, ``99.81B†``; None for other text."""
    match = _FIGURE.fullmatch(text)
    if match is None:
        return None
    mean, std = match["mean"].replace("−", "-"), match["std"]
    spread = float(std) if std else None
    return PublishedFigure(text, float(mean), spread, len(match["digits"] or ""))


class ReadFigure(BaseModel):
    """The number that is read from a run.

    Attributes:
        read: A name of `protofl_workbench.reproductions.reproduction_figures.READERS`.
        of: Column of the record; empty for the reader's default.
        target: Value to reach, for ``rounds-to`` and similar readers.
        round: The round; None for the reader's default.
        error: True to read 1 − x of an accuracy x.
        unit: ``%``, ``K``, ``M``, ``B``, ``MB``, ``MiB``, ``min`` or empty; None for the reader's
            default.
        words: Title; empty for the reader's default.
        mark: A word of caution about our figure, in brackets after it: ``seed chosen to fit``.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    read: str = "best"
    of: str = ""
    target: float | None = None
    round: PositiveInt | None = None
    error: bool = False
    unit: str | None = None
    words: str = ""
    mark: str = ""


USUAL = ReadFigure()
"""The default figure."""


@dataclass(frozen=True)
class TableLine:
    """A row or a column; its options override those of the reproduction.

    Attributes:
        name: Name on the command line.
        label: Name in tables.
        group: Heading above several columns; empty for none.
        options: Options of the run, as in a ``--config`` file.
        figure: The figure of this line; None for the reproduction's.
        figures: {column: figure}, for a row.
        note: A note below the table.
        columns: {column: options of the run}, for a row; they override all others of the file.
    """

    name: str
    label: str
    group: str = ""
    options: Values = field(default_factory=dict)
    figure: ReadFigure | None = None
    figures: Mapping[str, ReadFigure] = field(default_factory=dict)
    note: str = ""
    columns: Mapping[str, Values] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The group and the label."""
        return f"{self.group}, {self.label}" if self.group else self.label


@dataclass(frozen=True)
class Scale:
    """Replacements of the options of cells.

    Attributes:
        name: Name of the scale or variant.
        about: Description.
        options: {option: new value, or {old value: new value}}; ``*`` stands for all other values.
            ``set`` is such a table of plugin options.
    """

    name: str
    about: str = ""
    options: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper.

    Attributes:
        name: ``COLLECTION/NAME``, or the name of a file.
        title: Title.
        paper: Authors and year of the paper.
        place: Place in the paper: ``Table 1``.
        kind: Form of the result, see `KINDS_OF_REPRODUCTION`.
        figure: Default figure of the cells.
        options: Options of all cells.
        rows: The rows by name.
        columns: The columns by name; a reproduction without columns has one with an empty name.
        published: {(row, column): the figure as printed, `EMPTY` or `UNKNOWN`}.
        derived: True if ``published`` is computed from other figures that the paper prints.
        scales: Smaller versions by name; ``paper`` changes nothing.
        variants: Readings of the paper other than its equations, by name.
        variant: The default variant; empty for the paper's equations.
        files: {file that the user has to give: description}; options refer to it as ``{NAME}``.
        chosen: Choices made where the paper leaves a value open.
        draw: A name of `DRAWINGS`, for ``pictures``.
        of_images: Options of pictures of images.
        tuning: The search of a benchmark; None for other kinds.
        origin: Distribution and version, or the file.
        text: Content of the file.
        source: The file and the files that it extends, for errors.
    """

    name: str
    title: str
    rows: Mapping[str, TableLine]
    columns: Mapping[str, TableLine]
    paper: str = ""
    place: str = ""
    kind: KindOfReproduction = "table"
    figure: ReadFigure = USUAL
    options: Values = field(default_factory=dict)
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    derived: bool = False
    scales: Mapping[str, Scale] = field(default_factory=dict)
    variants: Mapping[str, Scale] = field(default_factory=dict)
    variant: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    draw: str = ""
    of_images: OfImages = field(default_factory=OfImages)
    tuning: Tuning | None = None
    origin: str = ""
    text: str = field(default="", repr=False)
    source: File | None = field(default=None, repr=False, compare=False)

    @property
    def heading(self) -> str:
        """Paper, place and title."""
        where = ", ".join(text for text in (self.paper, self.place) if text)
        return f"{where}: {self.title}" if where else self.title

    def figure_of(self, row: str, column: str) -> ReadFigure:
        """Return the figure of a cell; ``{column}`` in it is replaced by the column's name."""
        line = self.rows[row]
        figure = (
            line.figures.get(column) or line.figure or self.columns[column].figure or self.figure
        )
        return figure.model_copy(update={"of": figure.of.replace("{column}", column)})

    def with_rows(self, methods: Iterable[str]) -> Reproduction:
        """Return the reproduction with a further row for each method that has none."""
        added = {name: TableLine(name, name, options={"method": name}) for name in methods}
        return replace(
            self, rows={**self.rows, **{k: v for k, v in added.items() if k not in self.rows}}
        )

    def is_empty(self, row: str, column: str) -> bool:
        """Return True if the paper leaves a cell empty."""
        return self.published.get((row, column)) == EMPTY

"""Rows of a table as the numbers of a sample, by the form that a federation shares.

The form is the columns with their categories. It is the same for all clients, so that their models
have inputs of one width. Statistics (medians, means, deviations) are computed for each client from
its training rows, or from those of all clients (`protofl_plugins.datasets.table_statistics`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.datasets.table_reader import TableFile
from protofl_plugins.datasets.table_statistics import scalings
from protofl_plugins.datasets.table_values import (
    block_of,
    gaps_in,
    listed,
    missing_column,
    numbers_in,
    places_in,
    texts_in,
    without,
)

Impute = Literal["median+flag", "drop"]
Statistics = Literal["client", "global"]


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that is part of a sample.

    Attributes:
        name: Its name.
        categories: Its categories, each of which is a feature of 0 and 1; empty for numbers.
        gaps: True if values are missing; a further feature of 0 and 1 says where.
    """

    name: str
    categories: tuple[str, ...] = ()
    gaps: bool = False

    def __post_init__(self) -> None:
        """Take lists of a JSON file."""
        object.__setattr__(self, "categories", tuple(self.categories))

    @property
    def width(self) -> int:
        """Number of features."""
        return max(1, len(self.categories)) + self.gaps


@dataclass(frozen=True)
class JoinedLabels:
    """Several labels in each cell of a column.

    Attributes:
        column: The column.
        separator: What separates labels in a cell.
        names: The labels.
    """

    column: str
    separator: str
    names: tuple[str, ...]

    def read(self, values: np.ndarray, source: str) -> dict[str, np.ndarray]:
        """Return which cells hold each label, {label: 0 and 1 [n]}; a cell may hold none.

        Raises:
            UsageError: A cell holds an unknown label.
        """
        places = {name: place for place, name in enumerate(self.names)}
        texts = np.where(gaps_in(values, texts=True), "", texts_in(values)).astype(str)
        cells, rows = np.unique(texts, return_inverse=True)
        result = np.zeros((len(cells), len(self.names)))
        for place, cell in enumerate(cells.tolist()):
            held = [part.strip() for part in cell.split(self.separator) if part.strip()]
            if unknown := [name for name in held if name not in places]:
                raise pf.UsageError(
                    f"{source}: column {self.column!r} has the unknown label {unknown[0]!r}",
                    f"known: {listed(self.names)}",
                    "correct the value, or leave the row out",
                )
            result[place, [places[name] for name in held]] = 1
        return dict(zip(self.names, result[rows].T, strict=True))


@dataclass(frozen=True)
class TableForm:
    """The columns of a table, and how their values become the numbers of a sample.

    This is the `pf.datasets.Fitting` of tables.

    Attributes:
        columns: The columns in the order of the features.
        impute: What a missing number becomes: ``median+flag`` (the median of the training rows,
            and 1 in a further feature); with ``drop`` no value is missing.
        statistics: Whose training rows give medians, means and deviations: ``client`` for each
            client's own, ``global`` for those of all clients together.
        standardise: True for numbers with mean 0 and standard deviation 1 over training rows.
        decimal: The decimal mark of CSV files.
        encoding: The encoding of CSV files.
        missing: Words that are missing values in all columns.
        joined: The column whose cells hold several labels, if there is one.
    """

    columns: tuple[TableColumn, ...]
    impute: Impute = "median+flag"
    statistics: Statistics = "client"
    standardise: bool = True
    decimal: str = "."
    encoding: str = "utf-8"
    missing: tuple[str, ...] = ()
    joined: JoinedLabels | None = None

    def __post_init__(self) -> None:
        """Take mappings of a JSON file."""
        if isinstance(self.joined, Mapping):
            object.__setattr__(self, "joined", JoinedLabels(**self.joined))
        columns = [c if isinstance(c, TableColumn) else TableColumn(**c) for c in self.columns]
        object.__setattr__(self, "columns", tuple(columns))

    @property
    def width(self) -> int:
        """Number of features of a sample."""
        return sum(column.width for column in self.columns)

    @cached_property
    def numbers(self) -> list[int]:
        """The features that are numbers, which statistics are computed of."""
        starts = np.cumsum([0, *(column.width for column in self.columns)]).tolist()
        return [s for s, c in zip(starts, self.columns, strict=False) if not c.categories]

    def fitted(self, label: str, missing: float) -> pf.datasets.Fitted:
        """Return the form as it is recorded.

        Args:
            label: The column of the classes.
            missing: Share of values that are missing.
        """
        features, numeric = len(self.columns), len(self.numbers)
        categories = "1 category" if features - numeric == 1 else f"{features - numeric} categories"
        return pf.datasets.Fitted(
            asdict(self),
            f"{features} feature{'s' * (features != 1)} ({numeric} numeric, {categories})",
            label,
            missing,
            per_client=self.statistics == "client",
        )

    def fit(self, x: Tensor, rows: Sequence[Tensor]) -> list[pf.datasets.Scaling]:
        """Return the scaling of each client; a single one for ``global``.

        Args:
            x: Samples [N, F] of `encoded`.
            rows: The training rows of each client.
        """
        rows = [torch.cat([*rows])] if self.statistics == "global" else rows
        return scalings(x, rows, self.numbers, standardise=self.standardise)

    def notes(self, scalings: Sequence[pf.datasets.Scaling]) -> list[str]:
        """Return a note about clients with too few rows for statistics of their own.

        Args:
            scalings: Those of `fit`.
        """
        scales = np.array([scaling.scale for scaling in scalings])[:, self.numbers]
        few = scales == pf.datasets.Scaling.SILENT
        few &= ~few.all(0)  # a column may have one value in the whole table
        if not few.any():
            return []
        names = [column.name for column in self.columns if not column.categories]
        constant = [name for name, found in zip(names, few.any(0), strict=True) if found]
        clients = [str(client) for client in np.flatnonzero(few.any(1))]
        return [
            f"clients with too few training rows for their own statistics: {listed(clients)}; "
            f"columns with one value there are 0 for such a client: {listed(constant)}; to use "
            "statistics of all clients' training rows: --set dataset.statistics=global"
        ]

    def read(
        self,
        source: Any,  # noqa: ANN401 - a data frame has no type here
        further: Sequence[str] = (),
    ) -> tuple[Tensor, dict[str, np.ndarray]]:
        """Read new samples before statistics are applied.

        Args:
            source: The path of a file, or a data frame or mapping {column: values}.
            further: Columns that are read besides, or labels that are joined in a column; those
                that are missing are left out.

        Returns:
            Samples [N, F] float32, and the further columns as texts [N].

        Raises:
            UsageError: The file cannot be read, or a column or category is missing or unknown.
        """
        file, frame, name = None, dict[str, np.ndarray](), "samples"
        if isinstance(source, (str, Path)):
            file = TableFile.of(source, decimal=self.decimal, encoding=self.encoding)
            name = str(file.path)
        else:
            frame = block_of(source)
        has = [*frame] if file is None else file.names()
        for column in self.names:
            if column not in has:
                raise missing_column(name, column, has)
        joined = self.joined if self.joined and {*further} & {*self.joined.names} else None
        labels = [] if joined is None else joined.names
        read = [column for column in further if column in has and column not in labels]
        read += [] if joined is None else [joined.column]
        present = [column for column in further if column in (*read, *labels)]
        samples, texts, first = list[np.ndarray](), {n: list[str]() for n in present}, 0
        for block in [frame] if file is None else file.blocks([*self.names, *read]):
            block = {n: without(values, self.missing) for n, values in block.items()}
            samples.append(self.encoded(block, name, first))
            first += len(samples[-1])
            if joined is not None:
                block |= joined.read(block[joined.column], name)
            for column in present:
                texts[column] += texts_in(block[column])
        if not samples:
            raise pf.UsageError(f"{name} holds no rows", do="copy or save it again")
        columns = {column: np.array(values) for column, values in texts.items()}
        return torch.from_numpy(np.concatenate(samples)), columns

    def encoded(self, block: Mapping[str, np.ndarray], source: str, first: int = 0) -> np.ndarray:
        """Return the samples of rows before statistics are applied.

        Args:
            block: The columns, {name: values [n]}, see `TableFile.blocks`.
            source: The file, for errors.
            first: The number of rows before these.

        Returns:
            Samples [n, F] float32: numbers as they are, NaN where they are missing; 0 and 1 for
            categories and gaps.

        Raises:
            UsageError: A value is missing and may not be, is no number, or is an unknown category.
        """
        rows = len(next(iter(block.values()))) if block else 0
        result = np.zeros((rows, self.width), np.float32)
        start = 0
        for column in self.columns:
            values = block[column.name]
            part = result[:, start : start + column.width]
            if column.categories:
                self._categories(column, values, part, source, first)
            else:
                self._numbers(column, values, part, source, first)
            start += column.width
        return result

    def _categories(
        self, column: TableColumn, values: np.ndarray, part: np.ndarray, source: str, first: int
    ) -> None:
        """Write 0 and 1 for each category of a column."""
        gaps = gaps_in(values, texts=True)
        places = {name: place for place, name in enumerate(column.categories)}
        found = places_in(values, places)
        found[gaps] = len(places) if column.gaps else -1
        if (bad := np.flatnonzero(found < 0)).size:
            row = int(bad[0])
            if gaps[row]:
                raise _no_value(column, source, first + row)
            [text] = texts_in(values[row : row + 1])
            near = difflib.get_close_matches(text, column.categories, n=1)
            raise pf.UsageError(
                f"{source}: column {column.name!r} has the unknown category {text!r} in row "
                f"{first + row + 1}",
                f"known: {', '.join(column.categories[:12])}"
                + (" and more" if len(column.categories) > 12 else "")
                + (f"; did you mean {near[0]}?" if near else ""),
                "correct the value, or leave the row out",
            )
        part[np.arange(len(found)), found] = 1

    def _numbers(
        self, column: TableColumn, values: np.ndarray, part: np.ndarray, source: str, first: int
    ) -> None:
        """Write the numbers of a column, and where they are missing."""
        numbers = numbers_in(values, self.decimal)
        if numbers is None:
            row = first_text(values, self.decimal)
            raise pf.UsageError(
                f"{source}: column {column.name!r} has {str(values[row])[:40]!r} in row "
                f"{first + row + 1}, expected a number",
                do="correct the value, or leave it empty",
            )
        with np.errstate(over="ignore"):
            part[:, 0] = numbers
        gaps = np.isnan(numbers)
        if (wide := np.flatnonzero(np.isinf(part[:, 0]))).size:
            row = int(wide[0])
            raise pf.UsageError(
                f"{source}: column {column.name!r} has {str(values[row])[:40]} in row "
                f"{first + row + 1}, infinity or more than float32 holds",
                do="correct the value, or leave it empty",
            )
        if column.gaps:
            part[:, 1] = gaps
        elif self.impute != "median+flag" and gaps.any():
            raise _no_value(column, source, first + int(gaps.argmax()))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


def first_text(values: np.ndarray, decimal: str) -> int:
    """Return the place of the first value that is not a number."""
    return next(i for i in range(len(values)) if numbers_in(values[i : i + 1], decimal) is None)


def _no_value(column: TableColumn, source: str, row: int) -> pf.UsageError:
    return pf.UsageError(
        f"{source}: column {column.name!r} has no value in row {row + 1}",
        "the data of the client had no gaps there",
        "fill the value in, or leave the row out",
    )

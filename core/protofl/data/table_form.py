"""Rows of a table as the numbers of a sample, by the form that a federation shares.

The form is the columns with their categories. It is the same for all clients, so that their models
have inputs of one width. Statistics (medians, means, deviations) are computed for each client from
its training rows, or from those of all clients (`protofl.data.table_statistics`).
"""

from __future__ import annotations

import difflib
import mmap
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from protofl.data.table_values import (
    block_of,
    gaps_in,
    missing_column,
    numbers_in,
    texts_in,
)
from protofl.errors import UsageError
from protofl.system.formatting import count

__all__ = ["TableColumn", "TableForm", "TableReader"]

Impute = Literal["median+flag", "drop", "refuse"]
Statistics = Literal["client", "global"]

LARGE = 64 << 20
"""Bytes from which numbers lie in a file, which the system may keep on the disk."""


class TableReader(Protocol):
    """A table in a file, as ``open_table`` of a data set plugin returns it.

    Attributes:
        path: The file.
    """

    path: Path

    def names(self) -> list[str]:
        """Return the names of the columns."""
        ...

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield some columns, a block of rows at a time.

        Args:
            columns: Their names.

        Yields:
            {column: values [n]}: texts as objects, ``""`` for none; or float64, NaN for none.

        Raises:
            UsageError: A column is missing, or the file is damaged.
        """
        ...


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
class TableForm:
    """The columns of a table, and how their values become the numbers of a sample.

    Attributes:
        columns: The columns in the order of the features.
        label: The column of the classes.
        impute: What a missing number becomes: ``median+flag`` (the median of the training rows,
            and 1 in a further feature); with ``drop`` and ``refuse`` no value is missing.
        statistics: Whose training rows give medians, means and deviations: ``client`` for each
            client's own, ``global`` for those of all clients together.
        standardise: True for numbers with mean 0 and standard deviation 1 over training rows.
        decimal: The decimal mark of CSV files.
        encoding: The encoding of CSV files.
        missing: Share of values that are missing.
    """

    columns: tuple[TableColumn, ...]
    label: str = ""
    impute: Impute = "median+flag"
    statistics: Statistics = "client"
    standardise: bool = True
    decimal: str = "."
    encoding: str = "utf-8"
    missing: float = 0.0

    def __post_init__(self) -> None:
        """Take mappings of a JSON file."""
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

    def room(self, rows: int, folder: Path) -> Tensor:
        """Return zeros [rows, F] float32, in a temporary file in a folder if they are large."""
        return numbers_for((rows, self.width), folder)

    def __str__(self) -> str:
        """Return a line like ``14 features (9 numeric, 5 categories)``."""
        numeric = len(self.numbers)
        categorical = count(len(self.columns) - numeric, "category", "categories")
        return f"{count(len(self.columns), 'feature')} ({numeric} numeric, {categorical})"

    def encoded(self, block: Mapping[str, np.ndarray], source: str, first: int = 0) -> np.ndarray:
        """Return the samples of rows before statistics are applied.

        Args:
            block: The columns, {name: values [n]}, see `TableReader.blocks`.
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
        gaps = gaps_in(values)
        places = {name: place for place, name in enumerate(column.categories)}
        texts = texts_in(values)
        found = np.fromiter((places.get(text, -1) for text in texts), np.int64, len(texts))
        found[gaps] = len(places) if column.gaps else -1
        if (bad := np.flatnonzero(found < 0)).size:
            row, text = int(bad[0]), texts[bad[0]]
            if gaps[row]:
                raise _no_value(column, source, first + row)
            near = difflib.get_close_matches(text, column.categories, n=1)
            raise UsageError(
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
            raise UsageError(
                f"{source}: column {column.name!r} has {str(values[row])[:40]!r} in row "
                f"{first + row + 1}, expected a number",
                do="correct the value, or leave it empty",
            )
        with np.errstate(over="ignore"):
            part[:, 0] = numbers
        gaps = np.isnan(numbers)
        if (wide := np.flatnonzero(np.isinf(part[:, 0]))).size:
            row = int(wide[0])
            raise UsageError(
                f"{source}: column {column.name!r} has {values[row]} in row {first + row + 1}, "
                "infinity or more than float32 holds",
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

    def samples_in(
        self, file: TableReader, further: Sequence[str] = ()
    ) -> tuple[Tensor, dict[str, np.ndarray]]:
        """Read the samples of a file before statistics are applied.

        Args:
            file: The file.
            further: Columns that are read besides; those that the file lacks are left out.

        Returns:
            Samples [N, F] float32, and the further columns as texts [N].

        Raises:
            UsageError: The file cannot be read, or a column or category is missing or unknown.
        """
        has = [name for name in further if name in file.names()]
        samples, texts, first = list[np.ndarray](), {name: list[str]() for name in has}, 0
        for block in file.blocks([*self.names, *has]):
            samples.append(self.encoded(block, str(file.path), first))
            first += len(samples[-1])
            for name in has:
                texts[name] += texts_in(block[name])
        if not samples:
            raise UsageError(f"{file.path} holds no rows", do="copy or save it again")
        columns = {name: np.array(values) for name, values in texts.items()}
        return torch.from_numpy(np.concatenate(samples)), columns

    def samples_of(self, frame: Any, source: str) -> Tensor:  # noqa: ANN401 - see `block_of`
        """Return the samples of a data frame before statistics are applied, [N, F] float32.

        Raises:
            UsageError: A column or category is missing or unknown.
        """
        block = block_of(frame)
        for name in self.names:
            if name not in block:
                raise missing_column(source, name, [*block])
        return torch.from_numpy(self.encoded(block, source))


def numbers_for(shape: tuple[int, int], folder: Path) -> Tensor:
    """Return a float32 tensor of zeros, in a temporary file if it is large."""
    size = shape[0] * shape[1] * 4
    if size < LARGE:
        return torch.zeros(shape)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


def first_text(values: np.ndarray, decimal: str) -> int:
    """Return the place of the first value that is not a number."""
    return next(i for i in range(len(values)) if numbers_in(values[i : i + 1], decimal) is None)


def _no_value(column: TableColumn, source: str, row: int) -> UsageError:
    return UsageError(
        f"{source}: column {column.name!r} has no value in row {row + 1}",
        "the data of the client had no gaps there",
        "fill the value in, or leave the row out",
    )

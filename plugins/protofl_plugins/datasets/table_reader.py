"""Files of tables with named columns, read in blocks of rows: CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

import protofl as pf
from protofl_plugins.datasets.file_kinds import kind_of_file
from protofl_plugins.datasets.table_values import as_objects, gaps_in, missing_column, numbers_in

ROWS = 512
"""Rows that are read at once: their texts fit in the cache of a CPU, which halves the time."""

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
"""What separates values; spaces only if the first line has nothing else of these."""


@dataclass(frozen=True)
class TableFile:
    """A table in a file whose first line names the columns.

    Attributes:
        path: The file, CSV (with any ending) or Parquet.
        separator: What separates the values of a CSV file; None: what its first line suggests.
        decimal: The decimal mark of a CSV file.
        encoding: The encoding of a CSV file.
    """

    path: Path
    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    @classmethod
    def of(cls, path: str | Path, **options: Any) -> TableFile:  # noqa: ANN401 - the fields
        """Open a table.

        Args:
            path: The file.
            options: Other attributes.

        Raises:
            UsageError: There is no such file, or it is of another kind.
        """
        file = pf.expand_user(path)
        if not file.is_file():
            raise pf.missing_path(file, "give the path of a CSV or Parquet file")
        kind = kind_of_file(file)
        if kind and not kind.name.startswith(("a table as text", "a text", "a Parquet")):
            do = kind.do.replace("FILE", str(file)) or "give a CSV or Parquet file"
            raise pf.UsageError(
                f"{file} is not a table with named columns: it is {kind.name}", do=do
            )
        return cls(file, **options)

    @property
    def is_parquet(self) -> bool:
        """True for a Parquet file."""
        with self.path.open("rb") as file:
            return file.read(4) == b"PAR1"

    def names(self) -> list[str]:
        """Return the names of the columns; an unnamed first one, an index of pandas, is ``""``.

        Raises:
            UsageError: Two columns have one name, or one has none.
        """
        names = self._parquet_names() if self.is_parquet else self._header()[0]
        repeated = [name for name, times in Counter(names).items() if times > 1 and name]
        if repeated:
            places = [str(i + 1) for i, name in enumerate(names) if name == repeated[0]]
            raise pf.UsageError(
                f"{self.path}: columns {' and '.join(places)} have the same name {repeated[0]!r}",
                do="give each column a name of its own"
                + "; if the first line holds data, add a line with names" * is_number(repeated[0]),
            )
        if "" in names[1:]:
            raise pf.UsageError(
                f"{self.path}: column {names.index('', 1) + 1} of {len(names)} has no name",
                do="name every column in the first line",
            )
        return names

    def describe(self) -> str:
        """Return how the file is read where that is not usual; empty for commas and UTF-8."""
        if self.is_parquet:
            return ""
        _, separator, marked = self._header()
        mark = ["a byte order mark begins the file and is left out"] if marked else []
        return "; ".join(
            [f"values are separated by {_SEPARATORS.get(separator, repr(separator))}"]
            * (separator != ",")
            + mark
        )

    def blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield some columns, `ROWS` rows at a time.

        Args:
            columns: Their names.

        Yields:
            {column: values [n]}: texts as objects, ``""`` for none; or float64, NaN for none.

        Raises:
            UsageError: A column is missing, a row has too many or too few values, or the file is
                damaged, or needs a package.
        """
        names = self.names()
        for column in columns:
            if column not in names:
                raise missing_column(str(self.path), column, names)
        if self.is_parquet:
            yield from self._parquet_blocks(columns)
            return
        places = [(name, names.index(name)) for name in columns]
        done = 0
        for rows in self._rows(len(names)):
            values = [*zip(*rows, strict=True)]
            yield {name: as_objects(values[place]) for name, place in places}
            done += len(rows)

    # --- CSV --------------------------------------------------------------------------------------

    def _header(self) -> tuple[list[str], str, bool]:
        """Return the names in the first line, the separator, and whether a mark begins the file."""
        with self._reading(), self.path.open(encoding=self.encoding, newline="") as file:
            first = next((line for line in file if line.strip()), "")
            marked = first.startswith("\ufeff")
            first = first.removeprefix("\ufeff")
            separator = self.separator or max([*_SEPARATORS][:-1], key=first.count)
            if not self.separator and separator not in first and " " in first.strip():
                separator = " "
            if not first.strip():
                raise pf.UsageError(f"{self.path} is empty", do="copy or save it again")
            lines = chain([first], file)  # a quoted name may hold a newline
            row = next(csv.reader(lines, delimiter=separator, skipinitialspace=separator == " "))
            names = [name.strip() for name in row]
        if len(names) == 1:
            others = ", ".join(_SEPARATORS.values())
            raise pf.UsageError(
                f"{self.path}: the first line holds one column: {names[0][:60]!r}",
                f"values are separated by {others}",
                "say what separates them: --set dataset.separator=…",
            )
        return names, separator, marked

    def _rows(self, width: int) -> Iterator[list[list[str]]]:
        _, separator, _ = self._header()
        encoding = "utf-8-sig" if self.encoding.lower() in ("utf-8", "utf8") else self.encoding
        done = 0
        with self._reading(), self.path.open(encoding=encoding, newline="") as file:
            spaces = separator == " "
            reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=spaces)
            lines = (row for row in reader if row)
            next(lines)
            while rows := [*islice(lines, ROWS)]:
                if {*map(len, rows)} != {width}:
                    at = next(i for i, row in enumerate(rows) if len(row) != width)
                    if not done and {*map(len, rows)} == {width + 1}:
                        place = "beginning" if any(row[-1] for row in rows) else "end"
                        raise pf.UsageError(
                            f"{self.path}: each row has {width + 1} values, the first line names "
                            f"{width} columns",
                            f"a column at the {place}, such as names of the rows, has no name",
                            f"write a name for it at the {place} of the first line",
                        )
                    raise pf.UsageError(
                        f"{self.path}: row {done + at + 1} has {len(rows[at])} values, the first "
                        f"line names {width} columns",
                        f"the row begins with {', '.join(rows[at][:3])[:60]!r}",
                        "correct the row; a value that holds the separator is put in quotes",
                    )
                yield rows
                done += len(rows)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of Python into ours."""
        try:
            yield
        except UnicodeError as error:
            detail = (
                f"byte 0x{error.object[error.start]:02x}"
                if isinstance(error, UnicodeDecodeError)
                else str(error)
            )
            with self.path.open("rb") as file:
                wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            raise pf.UsageError(
                f"{self.path} is not {self.encoding.upper()}: {detail}",
                do="say its encoding: --set dataset.encoding=utf-16, as its first bytes suggest"
                if wide
                else "say its encoding, for example --set dataset.encoding=cp1252 (Western Europe "
                "on Windows), or save it as UTF-8",
            ) from None
        except LookupError:
            raise pf.UsageError(
                f"dataset.encoding={self.encoding}: there is no such encoding",
                do="give one that Python knows: utf-8, latin-1, cp1252, utf-16",
            ) from None
        except csv.Error as error:
            raise pf.UsageError(
                f"{self.path} cannot be read as CSV: {error}",
                "a quote that is not closed takes in all lines after it",
                "close the quote, or double a quote within a value",
            ) from None
        except OSError as error:
            raise pf.UsageError(f"{self.path} cannot be read: {error.strerror}") from None

    # --- Parquet ----------------------------------------------------------------------------------

    def _parquet(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        try:
            from pyarrow import parquet
        except ImportError:
            raise pf.UsageError(
                "Parquet files need the package pyarrow", do="pip install 'protofl[tables]'"
            ) from None
        try:
            return parquet.ParquetFile(self.path, pre_buffer=False)
        except (OSError, ValueError) as error:  # pyarrow's own are such
            line = str(error).strip().partition("\n")[0]
            raise pf.UsageError(
                f"{self.path} cannot be read as Parquet: {line}",
                do="the file is damaged; copy or save it again",
            ) from None

    def _parquet_names(self) -> list[str]:
        with self._parquet() as file:
            return [
                "" if name.startswith("__index_level_") else str(name)
                for name in file.schema_arrow.names
            ]

    def odd_types(self, columns: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Return columns of a Parquet file that hold dates or nested values.

        Args:
            columns: The columns to look at.

        Returns:
            {column: (what it holds, why that is not read, what can be done)}.
        """
        if not self.is_parquet:
            return {}
        from pyarrow import types

        known = (
            types.is_integer, types.is_floating, types.is_decimal, types.is_boolean,
            types.is_string, types.is_large_string, types.is_null,
        )  # fmt: skip
        result = {}
        with self._parquet() as file:
            for name in columns:
                kind = file.schema_arrow.field(name).type
                value = kind.value_type if types.is_dictionary(kind) else kind
                if types.is_temporal(value):
                    result[name] = dates(str(value))
                elif not any(is_kind(value) for is_kind in known):
                    what = f"holds values of the type {value}"
                    why = "columns hold numbers, truth values or texts"
                    result[name] = (what, why, "save numbers or texts")
        return result

    def _parquet_blocks(self, columns: Sequence[str]) -> Iterator[Mapping[str, np.ndarray]]:
        for name, (what, why, do) in self.odd_types(columns).items():
            raise pf.UsageError(f"{self.path}: column {name!r} {what}", why, do)
        with self._parquet() as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=[*columns], use_threads=False):
                yield {name: _of_arrow(batch.column(name)) for name in columns}


def _of_arrow(values: Any) -> np.ndarray:  # noqa: ANN401 - pyarrow has no types
    """Return a column of a batch as numbers or texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):  # categories, as in a CSV file
        values = pc.if_else(values, "True", "False")
    elif pa.types.is_integer(values.type):
        try:
            values = values.cast(pa.float64())
        except pa.ArrowInvalid:  # above 2^53, where names of persons would become one
            values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        texts: np.ndarray = values.fill_null("").to_numpy(zero_copy_only=False)
        return texts
    numbers: np.ndarray = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def dates(shown: str) -> tuple[str, str, str]:
    """Return what is wrong with a column of dates, such as the one shown; see `odd_types`."""
    return (
        f"holds dates ({shown})",
        "a date is not a number, and each date alone would be a category",
        "save a number in its place, such as the days since another date",
    )


def is_number(text: str) -> bool:
    """Return True for a text that is a number, and not for a missing value."""
    return numbers_in(as_objects([text])) is not None and not gaps_in(as_objects([text]))[0]

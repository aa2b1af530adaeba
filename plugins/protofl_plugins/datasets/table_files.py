"""Tables with named columns: ``--dataset csv:FILE`` and ``--dataset parquet:FILE``.

A row is a sample. ``dataset.label`` names the column of the classes, ``dataset.client`` the column
that makes a client of each value (a hospital), ``dataset.test`` the column that says which rows are
test rows, or their share; ``dataset.drop`` leaves columns out. With ``dataset.task=regression`` the
label is a column of numbers, with ``multilabel`` the labels are several columns of 0 and 1. All
other columns are features:

- A column of numbers is a feature. ``dataset.categories`` makes categories of numbers.
- A column of texts with at most ``dataset.most_categories`` different ones is one of categories:
  each is a feature of 0 and 1.
- Dates, and texts that are all different, are refused.

Missing values are empty or ``NA``; in columns of numbers they are also other words that programs
write for them (``None``, ``null``, ``?``). ``dataset.missing`` names more words. Numbers are
standardised, and missing ones become the median. Medians, means and deviations are those of each
client's training rows (``dataset.statistics=client``), or of all clients' training rows
(``global``). Names of categories, and which columns have gaps, are known to all clients.

CSV files are read by Python's csv module, Parquet files by pyarrow, both in blocks of rows.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator

import protofl as pf
from protofl_plugins.datasets.folder import ENDINGS, ImageConfig, all_files, is_image
from protofl_plugins.datasets.image_files import decode_images, open_image
from protofl_plugins.datasets.table_form import JoinedLabels, TableColumn, TableForm, first_text
from protofl_plugins.datasets.table_reader import TableFile, dates, is_number
from protofl_plugins.datasets.table_values import (
    as_objects,
    gaps_in,
    is_disguised,
    listed,
    missing_column,
    numbers_in,
    places_in,
    set_option,
    texts_in,
    without,
)

_LABELS = ("label", "class", "target", "y", "outcome", "diagnosis")
"""Names of the label's column that need not be given."""

_ENDINGS = ("", *ENDINGS)

_MOST_CLASSES = 1_000

_ROWS = 14
"""Mean number of rows of a value, at least, if the values of a column may be clients."""

_FEW = 20
"""Categories that a column may have even if most rows have one of their own."""

_MONTH = r"(0?[1-9]|1[0-2]|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)"

_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?"
    rf"|\d{{4}}[-/. ]?Q[1-4]|Q[1-4][-/. ]?\d{{4}}|\d{{4}}[-/. ]{_MONTH}|{_MONTH}[-/. ]\d{{4}}",
    re.IGNORECASE,
)
"""Days, months and quarters."""

_DECIMAL_COMMA = re.compile(r"[-+]?[\d.]*\d,\d+")

_MOST_PERSONS = 10_000
"""Most values of a column that are compared with the class."""

_REPEATS = 10
"""Rows beside the most frequent class in which a value comes again with the same class."""

_FLAGS = {"0": 0, "false": 0, "no": 0, "1": 1, "true": 1, "yes": 1}
"""Labels of a multi-label task."""

_PARTS = {**_FLAGS, "train": 0, "training": 0, "test": 1, "testing": 1}
"""Values of a column that says which rows are test rows."""

_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+\.\d+|[-+]?\d{1,3}(,\d{3}){2,}")
"""A number with commas between thousands, which cannot be a decimal comma."""

_IDENTIFIER = re.compile(
    r"(.*[_ .-])?(id|uuid|identifier|patient|subject|person|participant|user)"
    r"([_ .-]?(id|no|nr|number|code|name))?",
    re.IGNORECASE,
)
"""Names of columns that name rows or persons."""


def split_names(names: Any) -> Any:  # noqa: ANN401 - the value of an option
    """Return ``A,B`` as a list, a name with a comma in quotes; other values unchanged."""
    if isinstance(names, str):
        found = next(csv.reader([names], skipinitialspace=True), [])
        return [name.strip() for name in found if name.strip()]
    return names


_Names = Annotated[list[str], BeforeValidator(split_names)]


class TableOptions(ImageConfig, pf.datasets.TaskOptions):
    """Options of tables with named columns."""

    path: str = pf.Field(description="the file")
    drop: _Names = pf.Field([], description="columns that are left out, separated by commas")
    categories: _Names = pf.Field(
        [], description="columns whose numbers are names of categories, separated by commas"
    )
    most_categories: int = pf.Field(
        100, ge=2, le=10_000, description="largest number of categories of a column"
    )
    missing: _Names = pf.Field(
        [], description="words that are missing values, beside empty ones and NA, with commas"
    )
    impute: Literal["median+flag", "drop"] = pf.Field(
        "median+flag",
        description="what becomes of missing values: the median and a further feature that says "
        "so (a category of its own in columns of categories); or the row is left out",
    )
    statistics: Literal["client", "global"] = pf.Field(
        "client",
        description="whose training rows give medians, means and deviations: each client's own, "
        "or those of all clients together",
    )
    label: str | None = pf.Field(
        None,
        description="the column of the classes or numbers, or A,B for several labels. None: the "
        "only one named label, class, target, y, outcome or diagnosis",
    )
    image: str | None = pf.Field(
        None,
        description="the column that names each row's image file in the folder of the table or "
        "below, with or without its ending; the images are the samples. None: the other columns",
    )
    client: str | None = pf.Field(
        None,
        description="the column that names each row's client (hospital); the same as "
        "--partition column:CLIENT. None: the partitioner divides",
    )
    label_separator: str | None = pf.Field(
        None,
        min_length=1,
        description="what separates several labels in one cell of the label's column, such as |. "
        "None: each label of multilabel has a column of 0 and 1",
    )
    uncertain: Literal["0", "1", "drop"] | None = pf.Field(
        None, description="what -1 in a label of multilabel becomes; drop: the row is left out"
    )
    blank: Literal["0", "1", "drop"] | None = pf.Field(
        None, description="what an empty label becomes; 0 and 1: multilabel; drop: no such rows"
    )
    test: str | None = pf.Field(
        None,
        description="the column that is 1, true or test in test rows; or the share of each "
        "client's rows, such as 0.2. None: each client's rows are split 75/25",
    )
    standardise: bool = pf.Field(
        True,
        description="bring numbers to mean 0 and standard deviation 1 over the training rows; "
        "false leaves them as they are",
    )


class _NamedColumns:
    argument: ClassVar[str] = "path"
    client_option: ClassVar[str] = "client"
    defaults: ClassVar[dict[str, Any]] = {}
    name: ClassVar[str]
    fitting = TableForm

    def _reading(self, config: Any) -> dict[str, str | None]:  # noqa: ANN401 - a Config
        return {}

    @pf.hookimpl
    def cache_key(self, config: TableOptions, data_dir: Path) -> str:
        """The file's path, size and time, and the options that change what is decoded."""
        path = pf.expand_user(config.path)
        if not path.is_file():
            raise pf.missing_path(path, f"give it as --dataset {self.name}:FILE")
        chosen = config.model_dump(exclude_defaults=True, exclude={"path"})
        files = [path, *(all_files(path.parent) if config.image else ())]
        return pf.datasets.files_key(self.name, path, files, "rows 3", *chosen.items())

    @pf.hookimpl
    def decode(self, config: TableOptions, data_dir: Path) -> pf.datasets.Dataset:
        """Read the table twice: to know its columns, and to read its rows.

        Raises:
            UsageError: The file or a column cannot be used as it is; the error says what to do.
        """
        file = TableFile.of(config.path, **self._reading(config))
        if file.is_parquet != (self.name == "parquet"):
            other = "parquet" if file.is_parquet else "csv"
            raise pf.UsageError(
                f"{file.path} is not a {self.name} file", do=f"give it as --dataset {other}:FILE"
            )
        return _Reader(config, file, data_dir).dataset()


class Csv(_NamedColumns):
    """A table in a CSV file with named columns: a label, perhaps a client, and features."""

    name = "csv"

    class Config(TableOptions):
        """Options of csv."""

        separator: str | None = pf.Field(
            None,
            min_length=1,
            max_length=1,
            description="what separates values. None: commas, semicolons, tabs or bars, as the "
            "first line has them",
        )
        decimal: Literal[".", ","] = pf.Field(".", description="the decimal mark")
        encoding: str = pf.Field("utf-8", description="the encoding of the file")

    def _reading(self, config: Any) -> dict[str, str | None]:  # noqa: ANN401 - a Config
        return {n: getattr(config, n) for n in ("separator", "decimal", "encoding")}


class Parquet(_NamedColumns):
    """A table in a Parquet file: a label, perhaps a client, and features (needs pyarrow)."""

    name = "parquet"

    class Config(TableOptions):
        """Options of parquet."""


@dataclass
class _Column:
    """A column as the first reading finds it: its values, gaps and form.

    Attributes:
        name: Its name.
        most: Number of different texts that are kept; one more says that there are too many.
        counts_numbers: True to keep the texts of numbers, too.
        fault: Why its type is not read, see `TableFile.odd_types`.
        rows: Rows.
        gaps: Rows without a value.
        first_gap: The first of them.
        words: Rows of each word that is a missing value, but a text in a column of texts.
        first_empty: The first row that is missing in a column of texts, too.
        texts: Rows with a text that is not a number.
        whole: True if all numbers are whole.
        rises: True if each number is larger than the one in the row before.
        counts: True if each number is the one in the row before, or one more.
        steps: Rows with a number that is not the one in the row before.
        last: The number in the last row.
        low: The smallest number.
        high: The largest.
        first: The first such text, and its row.
        different: Different values as texts, as far as they are kept, with their rows.
        pairs: Rows of each value and class; None once a value has two classes, or few rows.
    """

    name: str
    most: int
    counts_numbers: bool = False
    fault: tuple[str, str, str] | None = None
    rows: int = 0
    gaps: int = 0
    first_gap: int = -1
    words: Counter[str] = field(default_factory=Counter)
    first_empty: int = -1
    texts: int = 0
    whole: bool = True
    rises: bool = True
    counts: bool = True
    steps: int = 0
    last: float = -np.inf
    low: float = np.inf
    high: float = -np.inf
    first: tuple[str, int] = ("", -1)
    different: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[Any, Any]] | None = field(default_factory=Counter)

    def add(self, values: np.ndarray, file: TableFile, classes: np.ndarray | None) -> None:
        """Take the values of a block, and the classes of its rows."""
        numbers = numbers_in(values, file.decimal)
        gaps = gaps_in(values) if numbers is None else np.isnan(numbers)
        empty = gaps_in(values, texts=True) if gaps.any() else gaps
        if gaps.any() and self.first_gap < 0:
            self.first_gap = self.rows + int(gaps.argmax())
        if empty.any() and self.first_empty < 0:
            self.first_empty = self.rows + int(empty.argmax())
        self.gaps += int(gaps.sum())
        self.words.update(texts_in(values[gaps & ~empty]))
        if numbers is None:
            self._add_texts(values, gaps, file)
        else:
            known = numbers[~gaps]
            self.whole = self.whole and bool((known == np.floor(known)).all())
            self.low = float(known.min(initial=self.low))
            self.high = float(known.max(initial=self.high))
            if (self.rises or self.counts) and len(numbers):
                steps = np.diff(numbers, prepend=self.last if self.rows else numbers[0] - 1)
                self.rises = self.rises and bool((steps > 0).all())
                self.counts = self.counts and bool(((steps == 0) | (steps == 1)).all())
                self.steps += int((steps > 0).sum())
                self.last = float(numbers[-1])
        if (numbers is None or self.counts_numbers) and len(self.different) <= self.most:
            self.different.update(texts_in(values[~gaps]))
        self.rows += len(values)
        if self.pairs is not None and classes is not None:
            self.pairs.update(zip(values[~gaps].tolist(), classes[~gaps].tolist(), strict=True))
            found = len(dict(self.pairs.keys()))
            if found < len(self.pairs) or 2 * found > self.rows or found > _MOST_PERSONS:
                self.pairs = None

    def take_texts(self) -> None:
        """Count words for missing numbers as texts, for a column of texts."""
        self.gaps -= self.words.total()
        self.texts += self.words.total()
        self.first_gap = self.first_empty
        self.different.update(self.words)

    @property
    def gives_class(self) -> bool:
        """True if each value has one class, in so many rows of several classes."""
        repeats = Counter[Any]()
        for (_, label), rows in (self.pairs or {}).items():
            repeats[label] += rows - 1
        return repeats.total() - max(repeats.values(), default=0) >= _REPEATS

    def _add_texts(self, values: np.ndarray, gaps: np.ndarray, file: TableFile) -> None:
        """Count the texts of a block that are not numbers."""
        words = {
            v
            for v in {*values[~gaps].tolist()}
            if numbers_in(np.array([v], object), file.decimal) is None
        }
        strange = np.fromiter((v in words for v in values), bool, len(values))
        self.texts += int(strange.sum())
        if self.first[1] < 0 and strange.any():
            row = int(strange.argmax())
            self.first = (str(values[row]).strip(), self.rows + row)


class _Reader:
    """Reads one table; see `_NamedColumns.decode`."""

    def __init__(self, config: Any, file: TableFile, data_dir: Path) -> None:  # noqa: ANN401
        self.config, self.file, self.data_dir = config, file, data_dir
        self.source = str(file.path)
        self.notes = [file.describe()]
        self.decimal = file.decimal
        self.task = pf.datasets.Task.of(config)
        if self.task.name == "language-model":
            raise pf.UsageError(
                "dataset.task=language-model needs texts as token ids, and a table has numbers and "
                "categories",
                do="--set dataset.task=classification, =multilabel or =regression; or give texts",
            )
        self.several = self.task.name == "multilabel"
        for option in ("label_separator", "uncertain", "blank"):
            value = getattr(config, option)
            if value is not None and not self.several and (option, value) != ("blank", "drop"):
                raise pf.UsageError(
                    f"dataset.{option} is for several labels, and the task is {self.task.name}",
                    do="add --set dataset.task=multilabel, or leave it out",
                )
        about_images = {*ImageConfig.model_fields}
        unused = sorted(config.model_dump(include=about_images, exclude_defaults=True))
        if unused and not config.image:
            raise pf.UsageError(
                f"dataset.{unused[0]} is for images, and the samples are rows of the table",
                do="name the column of the images: --set dataset.image=COLUMN, or leave it out",
            )
        self.replaced = Counter[str]()
        self.texts = set[str]()  # columns of texts
        self.left = list[str]()  # columns that are left out, and why
        self.pictures: dict[str, str] = {}
        self.left_out: list[int] = []

    def dataset(self) -> pf.datasets.Dataset:
        """Return the data set."""
        c, names = self.config, self.file.names()
        self._check_first_line(names)
        labels, share = self._labels(names), _share(c.test)
        test = c.test if share is None else None
        special = [("label", label) for label in labels]
        given = (("image", c.image), ("client", c.client), ("group", c.group), ("test", test))
        special += [(option, name) for option, name in given if name is not None]
        for option, name in special:
            if name not in names:
                raise self._missing(option, name, names)
        for option in ("drop", "categories"):
            for name in getattr(c, option):
                if name not in names:
                    raise self._missing(option, name, names)
        used = [name for _, name in special]
        for name in {name for name in used if used.count(name) > 1 or name in c.drop}:
            raise pf.UsageError(
                f"{self.source}: column {name!r} is given to two options",
                do="name another column in one of label, image, client, group, test and drop",
            )
        self.left += ["the first column, which has no name"] * (names[0] == "")
        self.left += [f"{name} (dataset.drop)" for name in c.drop]
        features = [n for n in names if n and n not in (*used, *c.drop)]
        if c.image:
            others = f"; other columns are not used: {', '.join(features)}" if features else ""
            if features and c.client is None:
                others += "; if one of them names the clients: --set dataset.client=COLUMN"
            self.notes.append(f"samples are the images that {c.image} names{others}")
            features = []
        elif not features:
            raise pf.UsageError(
                f"{self.source}: no column is left as a feature",
                f"columns: {listed([n for n in names if n])}; "
                f"left out: {listed(self.left) or 'none'}",
                "drop fewer columns, or give the first one a name",
            )
        seen = self._first_reading([*features, *used], labels)
        if not c.image:
            self._note_pictures([n for n in features if not seen[n].fault], c.drop)
            self._note_clients([seen[name] for name in features])
        form = None if c.image else self._form(features, seen)
        for label in labels:
            self._check_labels(seen[label])
        classes = self._classes(seen[labels[0]]) if self.task.has_classes else ()
        return self._second_reading(form, classes, seen, labels, test, share)

    def _missing(self, option: str, name: str, names: list[str]) -> pf.UsageError:
        error = missing_column(self.source, name, names)
        error.what += f", which dataset.{option} names"
        if quoted := [other for other in names if other.strip("'\"") == name]:
            given = getattr(self.config, option)
            value = [quoted[0] if n == name else n for n in given] if given != name else quoted[0]
            error.do = f"the quotes are part of its name: {set_option(option, value)}"
        return error

    def _check_first_line(self, names: list[str]) -> None:
        """Refuse a first line of data: each name is a number, or a value of its column."""
        block = None if self.file.is_parquet else next(iter(self.file.blocks(names)), None)
        if block and all(is_number(n) or n in texts_in(v) for n, v in block.items()):
            raise pf.UsageError(
                f"{self.source}: the first line looks like data: {listed(names)}",
                "the first line names the columns",
                f"add a first line with {len(names)} names",
            )

    def _labels(self, names: list[str]) -> list[str]:
        """Return the columns of the labels; several for a multi-label task."""
        several, label = self.task.name == "multilabel", self.config.label
        if label is not None:
            return [*split_names(label)] if several and label not in names else [label]
        found = [] if several else [name for name in names if name.lower() in _LABELS]
        noun = "numbers" if self.task.name == "regression" else "classes"
        if len(found) == 1:
            self.notes.append(f"the {noun} are those of the column {found[0]}")
            return found
        question = "columns hold the labels" if several else f"column holds the {noun}"
        raise pf.UsageError(
            f"{self.source}: which {question}?",
            f"columns: {', '.join(n for n in names[:20] if n)}",
            f"name {'them' if several else 'it'}: --set dataset.label=COLUMN" + ",COLUMN" * several,
        )

    def _blocks(
        self, names: list[str], found: Counter[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield blocks of columns, in which words of ``dataset.missing`` are missing values."""
        for block in self.file.blocks(names):
            yield {n: without(values, self.config.missing, found) for n, values in block.items()}

    def _first_reading(self, names: list[str], labels: list[str]) -> dict[str, _Column]:
        """Return what is known of each column."""
        c, found = self.config, Counter[str]()
        cells = 1 << 62 if c.label_separator else _MOST_CLASSES
        most = {labels[0]: cells, c.client: 1 << 62, c.group: 1 << 62, c.test: 10}
        named = {*c.categories, *labels, c.image, c.client, c.group, c.test}
        odd = {n: fault for n, fault in self.file.odd_types(names).items() if n not in named}
        seen = {
            n: _Column(n, most.get(n, c.most_categories), n in named, odd.get(n)) for n in names
        }
        for block in self._blocks([name for name in names if name not in odd], found):
            classes = block[labels[0]] if self.task.has_classes else None
            for name, values in block.items():
                seen[name].add(values, self.file, classes)
        if not seen[labels[0]].rows:
            raise pf.UsageError(
                f"{self.source} holds no rows, only names of columns", do="copy or save it again"
            )
        words = ", ".join(f"{word!r} ({found[word]:,})" for word in c.missing)
        self.notes += [f"read as missing: {words}"] * bool(words)
        self._take_texts(seen, labels)
        return seen

    def _take_texts(self, seen: dict[str, _Column], labels: list[str]) -> None:
        """Find the columns of texts, where words for missing numbers are texts."""
        c, shown, words = self.config, list[str](), [*self.config.missing]
        always = {*c.categories, *(labels if c.label_separator else ())}
        flags = {*labels} - always if self.several else set[str]()
        for name, column in seen.items():
            mixed = column.rows > column.gaps + column.texts and not column.counts_numbers
            if name in always or (column.texts and name not in flags and not mixed):
                self.texts.add(name)
                column.take_texts()
                shown += [f"{w!r} in {name} ({n:,} rows)" for w, n in column.words.items()]
                words += column.words
        if shown:
            self.notes.append(
                f"read as a category or class: {listed(shown)}; to read as missing: "
                + set_option("missing", [*dict.fromkeys(words)])
            )

    def _form(self, features: list[str], seen: dict[str, _Column]) -> TableForm:
        """Return the form of the table."""
        c = self.config
        if faults := {n: fault for n in features if (fault := self._fault(seen[n]))}:
            raise self._unusable(faults)
        empty = [n for n in features if seen[n].gaps == seen[n].rows]
        gaps = {n for n in features if seen[n].gaps and c.impute == "median+flag"}
        texts = {n: _ordered(seen[n].different) for n in features if n in self.texts}
        columns = [TableColumn(n, texts.get(n, ()), n in gaps) for n in features if n not in empty]
        if not columns:
            raise pf.UsageError(
                f"{self.source}: no feature has a value", do="give a file with values"
            )
        numbers = [column.name for column in columns if not column.categories]
        several = [f"{x.name} ({len(x.categories)})" for x in columns if x.categories]
        self.left += [f"{name} (no value)" for name in empty]
        read = (("numbers", numbers), ("categories", several), ("left out", self.left))
        self.notes.insert(1, "; ".join(f"{what}: {listed(n)}" for what, n in read if n))
        self._note_features([column.name for column in columns], seen)
        for name in numbers:
            self._note_precision(seen[name])
        return TableForm(
            tuple(columns),
            missing=tuple(c.missing),
            impute=c.impute,
            statistics=c.statistics,
            standardise=c.standardise,
            decimal=self.decimal,
            encoding=self.file.encoding,
        )

    def _fault(self, seen: _Column) -> tuple[str, str, str] | None:
        """Return why a column cannot be a feature: what it holds, why not, what can be done."""
        c, numbers = self.config, seen.rows - seen.gaps - seen.texts
        named, (text, row) = seen.name in c.categories, seen.first
        if seen.fault or not (named or seen.texts):
            return seen.fault
        allowed = set_option("categories", [*c.categories, seen.name])
        if not named and self._is_written_otherwise(text):
            raise self._otherwise(seen)
        if not named and numbers:
            return (
                f"mixes numbers and texts: {seen.texts:,} of {seen.rows:,} rows hold texts, the "
                f"first {text[:40]!r} in row {row + 1}",
                "",
                f"correct these rows or empty their values; if the values are names: {allowed}",
            )
        found = [_DATE.fullmatch(value) for value in {*seen.different} - {*seen.words}]
        if not named and 2 * sum(map(bool, found)) > len(found):
            return dates(text)
        different, values = len(seen.different), seen.rows - seen.gaps
        many = different > c.most_categories
        if many or (not named and different > _FEW and 2 * different > values):
            shown = f"more than {c.most_categories:,}" if many else str(different)
            return (
                f"has {shown} different values in {seen.rows:,} rows, such as "
                f"{(text or min(seen.different))[:40]!r}",
                "each category becomes a feature, so names and identifiers cannot be used",
                (f"{self.pictures[seen.name]}; " if seen.name in self.pictures else "")
                + f"allow it: {allowed}"
                + (" and --set dataset.most_categories=N" if many else "")
                + f"; of persons with several rows: {set_option('group', seen.name)}"
                + "; of numbers with a unit, save the numbers alone" * text[:1].isdecimal(),
            )
        return None

    def _unusable(self, faults: dict[str, tuple[str, str, str]]) -> pf.UsageError:
        """Return the error about columns that cannot be features; see `_fault`."""
        drop = set_option("drop", [*self.config.drop, *faults])
        shown = [f"column {name!r} {what}" for name, (what, _, _) in faults.items()]
        _, why, ways = next(iter(faults.values()))
        if len(shown) > 1:
            why, ways = listed(shown), "leave out all but one, and the error says how to keep it"
            shown = [f"{len(shown)} columns cannot be features"]
        return pf.UsageError(f"{self.source}: {shown[0]}", why, f"leave out: {drop}; or {ways}")

    def _note_clients(self, features: list[_Column]) -> None:
        """Note columns of texts that divide the rows as hospitals would."""
        found = {
            f.name: len(f.different)
            for f in features
            if f.texts and 2 < len(f.different) <= min(f.most, f.rows // _ROWS)
            if min(f.different.values()) > 1
        }
        if found and self.config.client is None:
            names = sorted(found, key=lambda name: -found[name])
            shown = listed([f"{name} ({found[name]} values)" for name in names])
            self.notes.append(
                f"text columns that are features: {shown}; if {names[0]} names the clients: "
                f"{set_option('client', names[0])}"
            )

    def _identifies(self, seen: _Column) -> bool:
        """Return True for a column that may number the rows, or name persons."""
        if seen.name in self.config.categories or not seen.whole:
            return False
        rows = seen.rises and not (seen.gaps or seen.texts) and seen.rows > _FEW
        persons = seen.counts and _FEW < seen.steps <= seen.rows // 2
        return rows or persons or bool(_IDENTIFIER.fullmatch(seen.name))

    def _note_features(self, features: list[str], seen: dict[str, _Column]) -> None:
        """Note features that give the class, number the rows, or name persons."""
        given = [name for name in features if seen[name].gives_class]
        rows = [n for n in features if n not in given and self._identifies(seen[n])]
        persons = [n for n in given if len(seen[n].pairs or ()) > _FEW]
        for names, groups, what in (
            (given, persons, "features that alone give the class, as each value has one class"),
            (rows, rows, "features that may only identify the rows"),
        ):
            if names:
                drop = set_option("drop", [*self.config.drop, *names])
                note = f"{what}: {', '.join(names)}; to leave them out: {drop}"
                if groups:
                    note += "; to keep rows of one person in one part, training or test: "
                    note += set_option("group", groups[0])
                self.notes.append(note)

    def _note_precision(self, seen: _Column) -> None:
        """Note numbers whose differences are lost in float32."""
        largest, spread = max(-seen.low, seen.high), seen.high - seen.low
        if largest >= 2**53 or 0 < spread < 100 * largest * 2**-23:
            self.notes.append(
                f"column {seen.name} has numbers up to {largest:g}, of which 7 digits are kept, so "
                "their differences are lost: save each number less the smallest one, or leave the "
                f"column out: {set_option('drop', [*self.config.drop, seen.name])}"
            )

    def _is_written_otherwise(self, text: str) -> bool:
        """Return True for a number with commas, underscores or digits other than 0 to 9."""
        if is_disguised(text):
            return re.sub("[-+_]", "", text).replace(self.decimal, "", 1).isdecimal()
        return self.decimal == "." and bool(
            _DECIMAL_COMMA.fullmatch(text) or _THOUSANDS.fullmatch(text)
        )

    def _otherwise(self, seen: _Column) -> pf.UsageError:
        text, row = seen.first
        where = f"{self.source}: column {seen.name!r} has {text[:40]!r} in row {row + 1}"
        if is_disguised(text):
            return pf.UsageError(
                f"{where}: a number with underscores, or with digits other than 0 to 9",
                do="save the numbers in digits alone; if the values are names: "
                f"{set_option('categories', [*self.config.categories, seen.name])}",
            )
        if _THOUSANDS.fullmatch(text):
            return pf.UsageError(
                f"{where}: commas between thousands", do="save the numbers without them"
            )
        return pf.UsageError(
            f"{where}: a decimal comma",
            "numbers are read with decimal points",
            "--set dataset.decimal=, (if the comma is between thousands, save the numbers without "
            "it)",
        )

    def _check_labels(self, seen: _Column) -> None:
        """Refuse a column of labels with gaps, unless an option says what they mean."""
        c = self.config
        if seen.gaps and not (c.blank or c.label_separator or c.impute == "drop"):
            raise pf.UsageError(
                f"{self.source}: no label in {seen.gaps:,} of {seen.rows:,} rows "
                f"(column {seen.name!r}), the first in row {seen.first_gap + 1}",
                do="give each row a label, or leave these rows out: --set dataset.blank=drop"
                + "; or read them as 0 or 1: --set dataset.blank=0 or =1" * self.several,
            )

    def _classes(self, seen: _Column) -> tuple[str, ...]:
        """Return the names of the classes; refuse columns that name none."""
        if len(seen.different) > _MOST_CLASSES or not (seen.texts or seen.whole):
            count = (
                f"more than {_MOST_CLASSES:,}"
                if len(seen.different) > _MOST_CLASSES
                else str(len(seen.different))
            )
            raise pf.UsageError(
                f"{self.source}: the label's column {seen.name!r} has {count} different "
                f"{'values' if seen.texts else 'numbers'}, such as {min(seen.different)[:40]!r}",
                f"a class is one of at most {_MOST_CLASSES:,} names or whole numbers",
                "name another column, divide the numbers into classes, or predict them: "
                "--set dataset.task=regression",
            )
        if not seen.texts and len(seen.different) > max(_FEW, seen.rows // 20):
            self.notes.append(
                f"each of {len(seen.different)} different numbers of the column {seen.name} is a "
                "class; to predict them as numbers: --set dataset.task=regression"
            )
        if seen.texts and (mark := _joining(seen.different)):
            joined = next(text for text in sorted(seen.different) if mark in text)
            self.notes.append(
                f"values of the column {seen.name}, such as {joined[:60]!r}, look like several "
                f"labels joined by {mark!r}, and each is a class; to separate them: --set "
                f"dataset.task=multilabel --set 'dataset.label_separator={mark}'"
            )
        if len(seen.different) < 2:
            raise pf.UsageError(
                f"{self.source}: only one class ({min(seen.different)}) in column {seen.name!r}",
                do="a data set needs two classes or more",
            )
        return _ordered(seen.different)

    def _second_reading(
        self,
        form: TableForm | None,
        classes: tuple[str, ...],
        seen: dict[str, _Column],
        labels: list[str],
        test: str | None,
        share: float | None,
    ) -> pf.datasets.Dataset:
        """Read the rows, in blocks."""
        c, total, label = self.config, seen[labels[0]].rows, labels[0]
        names = [] if form is None else [column.name for column in form.columns]
        special = (*labels, c.image, c.client, c.group, test)
        further = [name for name in special if name is not None]
        width, images = 0 if form is None else form.width, list[str]()
        x = pf.datasets.mapped_zeros((total, width), self.data_dir) if form else torch.empty(0)
        outputs = self._outputs(seen[label], labels)
        joined = None
        if c.label_separator:
            joined = JoinedLabels(label, c.label_separator, tuple(outputs))
            form = form and replace(form, joined=joined)
        y = np.zeros(total, np.int64) if classes else np.zeros((total, len(outputs)), np.float32)
        is_test = np.zeros(total, bool)
        places = {name: place for place, name in enumerate(classes)}
        given = {n: o for o, n in (("client", c.client), ("group", c.group)) if n is not None}
        values = {name: _ordered(seen[name].different) for name in given}
        value_places = {n: {v: place for place, v in enumerate(values[n])} for n in given}
        owners = {name: np.full(total, -1, np.int32) for name in given}  # the place of each value
        done = read = 0
        for block in self._blocks([*names, *further]):
            count = len(block[label])
            if (keep := self._kept(block, names, labels)) is not None:
                block = {name: column[keep] for name, column in block.items()}
            rows = slice(done, done + len(block[label]))
            if form is None:
                images += texts_in(block[c.image])
            else:
                x[rows] = torch.from_numpy(form.encoded(block, self.source, read))
            if classes:
                y[rows] = places_in(block[label], places)
            elif joined is not None:
                y[rows] = np.stack([*joined.read(block[label], self.source).values()], 1)
            else:
                y[rows] = np.stack([self._numbers(block[n], n, read) for n in labels], 1)
            for name in given:
                owners[name][rows] = places_in(block[name], value_places[name])
            if test:
                is_test[rows] = self._tests(block[test], test, read)
            done, read = rows.stop, read + count
        if not done:
            raise pf.UsageError(
                f"{self.source}: each row has a missing value or an uncertain label, so no row is "
                "left",
                do="--set dataset.impute=median+flag, or other values of dataset.uncertain and "
                "dataset.blank",
            )
        if done < total:
            self.notes.append(f"{total - done:,} of {total:,} rows with missing values left out")
        self.notes += [f"{n:,} {what}" for what, n in self.replaced.items()]
        x, y, is_test = x[:done], y[:done], is_test[:done]
        owners = {name: places[:done] for name, places in owners.items()}
        if classes:
            y, classes = self._present(y, classes)
        columns = {n: self._values(given[n], n, owners[n], values[n]) for n in given}
        if share is not None:
            is_test = _drawn(share, owners[c.client] if c.client else np.zeros(done, np.int32))
        if is_test.any():
            order = np.argsort(is_test, kind="stable")
            x = x if form is None else self._taken(x, order)
            images = [images[row] for row in order] if images else []
            y, columns = y[order], {name: values[order] for name, values in columns.items()}
            self._note_tests(y, int((~is_test).sum()), classes)
        if form is None:
            x, preparation = self._images(images)
        else:
            missing = sum(seen[name].gaps for name in names) / (total * len(names))
            preparation = pf.datasets.Preparation(fitted=form.fitted(label, missing))
        num_train = int((~is_test).sum())
        if classes:
            fields: dict[str, Any] = {"y": torch.from_numpy(y), "classes": [*classes]}
        else:
            fields = pf.datasets.target_fields(
                self.task, [y], [self.source], [done], outputs, num_train
            )
            self.notes.append(fields.pop("note"))
        return pf.datasets.Dataset(
            x=x,
            num_train=num_train,
            note="\n".join(filter(None, self.notes)),
            columns=columns,
            preparation=preparation,
            **fields,
        ).without(self.left_out)

    def _images(self, names: list[str]) -> tuple[torch.Tensor, pf.datasets.Preparation]:
        """Return the images [N, 3, side, side] that a column names, and how they were decoded."""
        root, files = self.file.path.parent, dict[str, list[Path]]()
        for path in all_files(root):
            own = path.relative_to(root)
            keys = (own.as_posix(), own.with_suffix("").as_posix(), own.name, own.stem)
            for key in {*keys}:
                files.setdefault(key, []).append(path)
        plain = [name.replace("\\", "/").removeprefix("./") for name in names]
        wrong = [name for name in plain if len(files.get(name, ())) != 1]
        if wrong:
            several = files.get(wrong[0], [])
            found = (
                f"has several files: {', '.join(map(str, several[:2]))}" if several else "has none"
            )
            raise pf.UsageError(
                f"{self.source}: {len(wrong):,} of {len(names):,} values of the column "
                f"{self.config.image!r} do not name one image below {root}: {wrong[0]!r} {found}",
                "a value is the path of an image file in the folder of the table, its name, or its "
                "name without the ending",
                "correct the values, move the table, or leave such rows out",
            )

        def image_of(row: int) -> tuple[Any, str]:
            path = files[plain[row]][0]
            return open_image(path), str(path)

        c = self.config
        decoded = decode_images(len(names), image_of, c.side, files=c.files, skip=c.skip_unreadable)
        self.left_out = decoded.left_out
        self.notes += decoded.notes
        usual = decoded.files == pf.datasets.ImageFiles()
        preparation = pf.datasets.Preparation(images=None if usual else decoded.files)
        return torch.from_numpy(decoded.x), preparation

    def _note_pictures(self, features: list[str], dropped: list[str]) -> None:
        """Note columns whose first value is the name of an image beside the table."""
        root = self.file.path.parent
        folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())[:20]]
        first = dict[str, np.ndarray]()
        for names in (features, *([name] for name in dropped)):
            with suppress(pf.UsageError):  # a column that is left out may hold anything
                first |= next(iter(self.file.blocks(names)), {})
        for name, values in first.items():
            if values.dtype != object or numbers_in(values[:1]) is not None:
                continue
            text = str(values[0]).strip()
            files = (folder / (text + ending) for folder in folders for ending in _ENDINGS)
            found = next((f for f in files if is_image(f.name) and f.is_file()), None)
            if found:
                self.pictures[name] = (
                    f"column {name} names pictures, such as {found.relative_to(root)}; to read "
                    f"them: {set_option('image', name)} (without a table: --dataset folder:DIR)"
                )
        self.notes += [*self.pictures.values()]

    def _numbers(self, values: np.ndarray, name: str, first: int) -> np.ndarray:
        """Return labels [n] as numbers; true and false of a multi-label task are 1 and 0."""
        several = self.several
        numbers = self._chosen(self._flags(values)) if several else numbers_in(values, self.decimal)
        if numbers is None:
            row = first_text(values, self.decimal)
        elif several and (odd := (numbers != 0) & (numbers != 1)).any():
            row = int(odd.argmax())
        else:
            return numbers
        text = str(values[row]).strip()
        if several and numbers is not None and numbers[row] == -1:
            blocks = self.file.blocks([name])
            count = sum(int((self._flags(block[name]) == -1).sum()) for block in blocks)
            raise pf.UsageError(
                f"{self.source}: the label's column {name!r} has -1, uncertain, in {count:,} rows",
                "a label is 0 or 1",
                "read them as 0 or 1, or leave the rows out: --set dataset.uncertain=0, =1 or "
                "=drop",
            )
        if not several and self._is_written_otherwise(text):
            raise self._otherwise(_Column(name, 0, first=(text, first + row)))
        raise pf.UsageError(
            f"{self.source}: the label's column {name!r} has {text[:40]!r} in row "
            f"{first + row + 1}",
            f"{self.task.name} takes {'0 or 1' if several else 'a number'} in each row",
            "correct the column, or name another one: --set dataset.label=COLUMN"
            + (
                "; if a cell holds several labels, say what separates them: --set "
                f"'dataset.label_separator={_joining({*texts_in(values)}) or '|'}'"
            )
            * several,
        )

    def _flags(self, values: np.ndarray) -> np.ndarray:
        """Return labels [n] of 0 and 1; -1 for uncertain, NaN for none, infinity for others."""
        numbers = numbers_in(values, self.decimal)
        if numbers is None:
            found = _in_any_case(values, {**_FLAGS, "-1": 2})
            numbers = np.select([found == 2, found < 0], [-1.0, np.inf], found)
            numbers[gaps_in(values)] = np.nan
        return numbers

    def _chosen(self, numbers: np.ndarray) -> np.ndarray:
        """Return labels with the numbers that the options give to uncertain and empty ones."""
        c = self.config
        for what, places, choice in (
            ("uncertain labels (-1)", numbers == -1, c.uncertain),
            ("empty labels", np.isnan(numbers), c.blank),
        ):
            if choice in ("0", "1") and places.any():
                self.replaced[f"{what} are read as {choice}"] += int(places.sum())
                numbers = np.where(places, float(choice), numbers)
        return numbers

    def _outputs(self, seen: _Column, labels: list[str]) -> list[str]:
        """Return the names of the labels: the columns, or what cells hold."""
        mark = self.config.label_separator
        if mark is None:
            return labels
        if len(labels) > 1:
            raise pf.UsageError(
                f"dataset.label_separator={mark} reads one column, and dataset.label names "
                f"{len(labels)}",
                do="leave one of them out",
            )
        cells = (text.split(mark) for text in seen.different)
        names = sorted({name.strip() for cell in cells for name in cell} - {""})
        if not 1 < len(names) <= _MOST_CLASSES:
            raise pf.UsageError(
                f"{self.source}: column {seen.name!r} has {len(names):,} labels if "
                f"{mark!r} separates them",
                f"expected from 2 to {_MOST_CLASSES:,}",
                "correct dataset.label_separator",
            )
        return names

    def _kept(
        self, block: Mapping[str, np.ndarray], names: list[str], labels: list[str]
    ) -> np.ndarray | None:
        """Return the rows that options do not leave out; None for all."""
        c = self.config
        out = np.zeros(len(block[labels[0]]), bool)
        unlabelled = c.blank or (None if c.label_separator else c.impute)
        for name in names * (c.impute == "drop") + labels * (unlabelled == "drop"):
            out |= gaps_in(block[name], texts=name in self.texts)
        for name in labels:
            if c.uncertain == "drop" and not c.label_separator:
                out |= self._flags(block[name]) == -1
        return np.flatnonzero(~out) if out.any() else None

    def _present(
        self, y: np.ndarray, classes: tuple[str, ...]
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return labels and classes without those of which no row is left."""
        present = np.unique(y)
        if len(present) == len(classes):
            return y, classes
        gone = [name for place, name in enumerate(classes) if place not in present]
        if len(present) < 2:
            raise pf.UsageError(
                f"{self.source}: only one class is left without rows with missing values",
                do="--set dataset.impute=median+flag",
            )
        self.notes.append(f"left out with its rows: class {', '.join(gone)}")
        return np.searchsorted(present, y), tuple(classes[place] for place in present)

    def _values(
        self, option: str, name: str, owners: np.ndarray, texts: tuple[str, ...]
    ) -> np.ndarray:
        """Return the column of the clients or groups; check that it names one for each row."""
        whole = all(t.isdecimal() and len(t) < 18 and str(int(t)) == t for t in texts)
        values = np.array([int(t) for t in texts] if whole else [*texts])
        if (lacking := np.flatnonzero(owners < 0)).size:
            raise pf.UsageError(
                f"{self.source}: no {option} in {len(lacking):,} of {len(owners):,} rows "
                f"(column {name!r}), the first in row {lacking[0] + 1}",
                do=f"name a {option} in each row, or leave these rows out of the file",
            )
        return pf.datasets.mapped_column(values, owners, self.data_dir)

    def _tests(self, values: np.ndarray, name: str, first: int) -> np.ndarray:
        """Return which rows are test rows by a column, [n] bool."""
        parts = _in_any_case(values, _PARTS)
        if (parts < 0).any():
            row = int(parts.argmin())
            [text] = texts_in(values[row : row + 1])
            raise pf.UsageError(
                f"{self.source}: column {name!r} has {text!r} in row {first + row + 1}",
                "expected 0, false or train for training rows; 1, true or test for test rows",
                "correct the column, or give a share: --set dataset.test=0.25",
            )
        is_test: np.ndarray = parts == 1
        return is_test

    def _note_tests(self, y: np.ndarray, num_train: int, classes: tuple[str, ...]) -> None:
        """Note what a user should know of the test rows."""
        if not num_train:
            raise pf.UsageError(
                f"{self.source}: dataset.test={self.config.test} leaves no training row",
                do="mark some rows as training rows",
            )
        only = np.setdiff1d(y[num_train:], y[:num_train])
        if classes and only.size:
            names = ", ".join(classes[place] for place in only)
            self.notes.append(f"only in test rows, so no client can learn it: class {names}")
        if not self.config.client:
            self.notes.append(
                "a partitioner may divide test rows as training rows and split them 75/25; with "
                "dataset.client each client keeps its test rows"
            )

    def _taken(self, x: torch.Tensor, order: np.ndarray) -> torch.Tensor:
        """Return rows in another order, copied in blocks."""
        result = pf.datasets.mapped_zeros(x.shape, self.data_dir)
        for start in range(0, len(order), 65_536):
            rows = torch.from_numpy(order[start : start + 65_536])
            result[start : start + len(rows)] = x[rows]
        return result


def _share(test: str | None) -> float | None:
    """Return the share of test rows, if a number was given and no column."""
    try:
        share = float(test) if test is not None else None
    except ValueError:
        return None
    if share is not None and not 0 < share < 1:
        raise pf.UsageError(f"dataset.test={test}", "expected a column, or a share between 0 and 1")
    return share


def _drawn(share: float, owners: np.ndarray) -> np.ndarray:
    """Draw test rows [n] bool: of each owner its share, at least one, and not all.

    The draw is the same in every run, so that the test rows do not depend on a run's seed.
    """
    chance = np.random.default_rng(0).random(len(owners))
    sizes = np.bincount(owners)
    tests = np.clip(np.floor(sizes * share + 0.5), 1, np.maximum(sizes - 1, 0)).astype(np.int64)
    order = np.lexsort((chance, owners))
    place = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result = np.zeros(len(owners), bool)
    result[order] = place < np.repeat(tests, sizes)
    return result


def _in_any_case(values: np.ndarray, words: Mapping[str, int]) -> np.ndarray:
    """Return the number [n] of each word, in small or large letters; -1 for other words."""
    return places_in(as_objects([text.lower() for text in texts_in(values)]), words)


def _joining(texts: Collection[str]) -> str:
    """Return what joins several labels in texts: the texts are fewer if it separates them."""
    for mark in ("|", ";", ","):
        if any(mark in text for text in texts):
            parts = {part.strip() for text in texts for part in text.split(mark)} - {""}
            if len(parts) < len(texts):
                return mark
    return ""


def _ordered(texts: Collection[str]) -> tuple[str, ...]:
    """Return names in order: whole numbers by size, others by letters."""
    if all(text.lstrip("-").isdecimal() for text in texts):
        return tuple(sorted(texts, key=lambda text: (int(text), text)))
    return tuple(sorted(texts))

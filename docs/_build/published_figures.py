"""Published figures of a method: the rows of the installed reproductions that run it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from protofl.errors import ProtoflError
from protofl_workbench.reproductions.finding import collections
from protofl_workbench.reproductions.reproduction import EMPTY, UNKNOWN, Reproduction, TableLine


@dataclass(frozen=True)
class PublishedRow:
    """Figures that a paper prints for a method.

    Attributes:
        reproduction: ``COLLECTION/NAME``, which ``protofl reproduce`` runs.
        paper: Authors and year of the paper.
        place: Place in the paper.
        title: Title of the table or figure.
        row: Label of the row.
        figures: {label of the column: the figure as printed}.
        derived: True if the figures are computed from others that the paper prints.
    """

    reproduction: str
    paper: str
    place: str
    title: str
    row: str
    figures: Mapping[str, str]
    derived: bool


def installed_reproductions() -> list[Reproduction]:
    """Return the installed reproductions, without those whose file has an error."""
    found = []
    for collection in collections().values():
        for name in collection.names():
            with suppress(ProtoflError):  # `protofl check reproduction/NAME` shows the error
                found.append(collection.reproduction(name.partition("/")[2]))
    return found


def published_rows(method: str, reproductions: Iterable[Reproduction]) -> list[PublishedRow]:
    """Return the published figures of a method, by reproduction and row."""
    return [row for reproduction in reproductions for row in _rows_of(reproduction, method)]


def _rows_of(reproduction: Reproduction, method: str) -> list[PublishedRow]:
    found = []
    for name, row in reproduction.rows.items():
        figures = {
            _label(column): text
            for column_name, column in reproduction.columns.items()
            if _method(reproduction, row, column) == method
            and (text := reproduction.published.get((name, column_name), EMPTY))
            not in (EMPTY, UNKNOWN)
        }
        if figures:
            found.append(
                PublishedRow(
                    reproduction.name,
                    reproduction.paper,
                    reproduction.place,
                    reproduction.title,
                    row.label,
                    figures,
                    reproduction.derived,
                )
            )
    return found


def _method(reproduction: Reproduction, row: TableLine, column: TableLine) -> str:
    """Return the method of a cell; options of the row win over those of its column."""
    for options in (row.options, column.options, reproduction.options):
        if "method" in options:
            return str(options["method"])
    return ""


def _label(column: TableLine) -> str:
    return " ".join(text for text in (column.group, column.label) if text)

"""Where in a study's file an option stands that turned out to be wrong when its cell was tried."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from protofl.errors import UsageError
from protofl.studies.cells import Cell
from protofl.studies.study import Study

_QUOTED = re.compile(r"'([^']+)'")


@contextmanager
def placed(study: Study, cell: Cell) -> Iterator[None]:
    """Errors about a cell's options name file, line and cell.

    Args:
        study: The study.
        cell: One of its cells.
    """
    try:
        yield
    except UsageError as error:
        error.what = f"{place_of(study, cell, error.what)}{cell.name}: {error.what}"
        raise


def place_of(study: Study, cell: Cell, what: str) -> str:
    """``FILE, line N: `` of the option that an error names.

    It is the row's line where no option is named. What a user has said is in no file.

    Args:
        study: The study.
        cell: The cell.
        what: The error.
    """
    if study.source is None:
        return ""
    names = {part for quoted in _QUOTED.findall(what) for part in (quoted, *quoted.split("."))}
    if names & _words(cell.said):
        return ""
    layers: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [
        (("rows", cell.row), study.rows[cell.row].options),
        (("columns", cell.column), study.columns[cell.column].options),
        (("options",), study.options),
    ]
    for path, options in layers:
        for key, value in options.items():
            if key in names or names & _words(value):
                inside = _path(value, names) if isinstance(value, Mapping) else ()
                return f"{study.source.where((*path, key, *inside))}: "
    return f"{study.source.where(('rows', cell.row))}: "


def _path(values: Mapping[str, Any], names: set[str]) -> tuple[str, ...]:
    """The keys that lead to a name."""
    for key, value in values.items():
        if names.intersection(key.split(".")):
            return (key,)
        if isinstance(value, Mapping) and (inside := _path(value, names)):
            return (key, *inside)
    return ()


def _words(value: Any) -> set[str]:  # noqa: ANN401 - options are of many types
    """The keys and texts in an option, and what dots divide in them."""
    if isinstance(value, Mapping):
        return set().union(*map(_words, value), *map(_words, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(_words, value))
    return {str(value), *str(value).split(".")}

"""The JSON files of a run folder, read and checked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from protofl.records.row import Row
from protofl.system.files.atomic import parse_json, regular_file
from protofl.system.files.checksums import Damaged, read_json


def read_rows(file: Path) -> list[Row]:
    """Read the complete lines of a record; an empty list if the file does not exist.

    Raises:
        Damaged: A line is invalid; the error names file and line.
    """
    try:
        lines = regular_file(file).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Damaged(f"{file} cannot be read: {error.strerror or error}") from None
    rows = [_row(file, number, line) for number, line in enumerate(lines[:-1], 1)]
    if lines[-1]:  # without an end of line: half written, or a copy that lost it
        with suppress(Damaged):
            rows.append(_row(file, len(lines), lines[-1]))
    return rows


def _row(file: Path, number: int, line: bytes) -> Row:
    place = f"{file}, line {number},"
    try:
        values = parse_json(line)
    except ValueError as error:
        plain = type(error) is ValueError
        problem = str(error) if plain else "it is not JSON"
        raise Damaged(f"{place} is damaged: {problem}") from None
    return Row(checked(values, "Line", place))


def table_or_none(file: Path, form: str = "") -> dict[str, Any] | None:
    """Read a JSON file; None if it is missing or empty."""
    try:
        if not file.stat().st_size:
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{file} cannot be read: {error.strerror or error}") from None
    return table_of(file, form)


def table_of(file: Path, form: str = "") -> dict[str, Any]:
    """Read a JSON file, which may be a link, in a form of `protofl.records.schema`."""
    values = read_json(file.resolve() if file.is_symlink() else file)
    return checked(values, form, str(file)) if form else values


def checked(values: Any, form: str, place: str) -> Any:  # noqa: ANN401 - JSON
    """Return values that have a form of `protofl.records.schema`; see `schema.check`."""
    from protofl.records import schema  # a run that is not resumed does without

    return schema.check(values, getattr(schema, form), place)

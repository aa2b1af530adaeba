"""Tables of values from TOML or JSON, and numbers as JSON holds them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.atomic import parse_json, regular_file
from protofl.system.files.checksums import Damaged, read_json


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML into a mapping; raises ValueError if it is invalid or nested too deeply."""
    import tomllib

    try:
        values: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables in tables, too deep to read") from None
    return values


def finite(value: float) -> float | None:
    """Return a number, or None for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


def json_values(value: Any) -> Any:  # noqa: ANN401 - JSON, paths and tuples
    """Return a value with lists for sequences, text for paths, and None for NaN and infinity.

    Raises:
        TypeError: The value has a type that JSON lacks.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(each) for key, each in value.items()}
    if isinstance(value, (Sequence, Set)):
        return [json_values(each) for each in value]
    raise TypeError(f"JSON has no {type(value).__name__}")


def rounded(value: float) -> float:
    """Return a measured number with six significant digits."""
    return float(f"{value:.6g}")


def read_table(path: Path, flag: str, noun: str) -> dict[str, Any]:
    """Read a table: JSON if the file's name ends in ``.json``, otherwise TOML.

    Args:
        path: The file.
        flag: The option that names the file, for errors.
        noun: The expected content, for errors.

    Raises:
        UsageError: The file can't be read, or holds no table.
    """
    try:
        text = regular_file(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no UTF-8, or no name of a file
        raise UsageError(f"{flag} {path} cannot be read: {error}") from None
    language = "JSON" if path.suffix == ".json" else "TOML"
    try:
        values = parse_json(text) if language == "JSON" else parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{flag} {path} is not valid {language}: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{flag} {path}: expected a table of {noun}")
    return values


def unchanged_table(file: Path, first: Path | None, free: Collection[str] = ()) -> dict[str, Any]:
    """Read a JSON table and check that it equals its copy.

    Args:
        file: The file.
        first: The copy, if it exists.
        free: Keys whose values come from the copy.

    Raises:
        Damaged: A file is damaged, or the two differ; the error names the differences.
    """
    keep = "restore its content"
    if first is not None:
        keep += f" ({first} is a copy of {file})"
    try:
        values = read_json(file)
        copy = read_json(first) if first else values
        values |= {key: copy[key] for key in free}
        changed = differences(copy, values)
    except Damaged as problem:
        problem.do = keep
        raise
    texts = [f"{name} is {is_now}, it was {was}" for name, (was, is_now) in changed.items()]
    if texts:
        more = f", and {len(texts) - 3} more" if len(texts) > 3 else ""
        raise Damaged(f"{file} was changed: {', '.join(texts[:3])}{more}", do=keep)
    return values


def differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return {name: (first, second value)} of the differences of two tables.

    Nested names have dots. A missing value is "missing".
    """
    first, second = flat(one), flat(two)
    pairs = {k: (first.get(k, "missing"), second.get(k, "missing")) for k in first | second}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def flat(table: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with names ``OUTER.INNER``; a list is one value."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            result |= flat(value, separator, f"{prefix}{key}{separator}")
        else:
            result[f"{prefix}{key}"] = value
    return result

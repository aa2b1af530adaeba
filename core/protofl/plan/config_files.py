"""Files of options: TOML or JSON with the long names that ``protofl run`` takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofl.errors import UsageError

RECORD_ONLY = {"plugins", "versions", "data", "layout", "protofl", "description"}
"""Entries of a run's config.json that record the run and are no options, and a recipe's text."""


def read_options_file(path: Path) -> dict[str, Any]:
    """Options from a TOML or JSON file, by their long names (``-`` and ``_`` alike).

    Raises:
        UsageError: The file can't be read or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} can't be read: {error}") from None
    try:
        values = json.loads(text) if path.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        raise UsageError(
            f"--config {path} is no valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} holds no table of options")
    return options_in(values)


def options_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a file are options."""
    values = {key.replace("-", "_"): value for key, value in values.items()}
    return {key: value for key, value in values.items() if key not in RECORD_ONLY}


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as a mapping; ValueError where it is none."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    values: dict[str, Any] = tomllib.loads(text)
    return values


def to_toml(values: Mapping[str, Any]) -> str:
    """Texts, numbers, truth values, lists of them and tables of them as TOML."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in plain.items()]
    for key, table in values.items():
        if isinstance(table, Mapping):
            own = [f"{_key(inner)} = {_toml(value)}" for inner, value in table.items()]
            lines += ["", f"[{_key(key)}]", *own]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml(value: Any) -> str:  # noqa: ANN401 - options are of many types
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if value is None:
        return '"none"'  # as --set writes it
    return json.dumps(str(value), ensure_ascii=False)

"""TOML as values, and values as TOML: of what the standard library only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


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

"""Study files as they lie on the disk: TOML, those that they extend, and the place of a mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from protofl.errors import UsageError, unknown
from protofl.studies.lines import line_of
from protofl.toml import parse_toml

TEXTS = ("title", "paper", "place", "kind", "variant")
TABLES = ("options", "rows", "columns", "published", "scales", "variants", "constants", "files")
KEYS = (*TEXTS, *TABLES, "extends", "figure", "chosen", "draw")

Load = Callable[[str], "Found"]
"""Finds what ``extends`` names."""


class Found(NamedTuple):
    """A file that another one extends.

    Attributes:
        name: What it is called in errors.
        text: What it holds.
        load: Finds what it extends itself: what is beside it, before what is installed.
    """

    name: str
    text: str
    load: Load


@dataclass(frozen=True)
class File:
    """A study file, with those that it extends below it.

    Attributes:
        name: What it is called in errors.
        text: What it holds.
        values: The same as values.
        below: The file that it extends, if any.
    """

    name: str
    text: str
    values: dict[str, Any]
    below: File | None = None

    def merged(self, key: str) -> dict[str, Any]:
        """A table of values, over those of the files below."""
        under = self.below.merged(key) if self.below else {}
        return _merge(under, self.values.get(key, {}))

    def first(self, key: str) -> Any:  # noqa: ANN401 - of any type
        """The value of the highest file that has it; None for none."""
        if key in self.values:
            return self.values[key]
        return self.below.first(key) if self.below else None

    def fail(self, path: tuple[str, ...], what: str, near: str = "", do: str = "") -> NoReturn:
        """Raise the error about a key, which names the line of the file that has it."""
        raise UsageError(f"{self.where(path)}: {what}", near, do)

    def where(self, path: tuple[str, ...]) -> str:
        """``FILE, line N``."""
        found: list[tuple[File, int]] = []
        file: File | None = self
        while file is not None:
            found.append((file, _depth(file.values, path)))
            file = file.below
        deepest = max(found, key=lambda pair: pair[1])[0]
        line = line_of(deepest.text, path)
        return f"{deepest.name}, line {line}" if line else deepest.name

    def unknown(self, path: tuple[str, ...], noun: str, name: str, known: Any) -> NoReturn:  # noqa: ANN401
        """Raise the error about a name that does not exist."""
        error = unknown(noun, name, known)
        self.fail(path, error.what, error.near, "the keys are in docs/how-to/write-a-study.md")


def open_file(text: str, name: str, load: Load, seen: tuple[str, ...] = ()) -> File:
    """A file, and those below it.

    Raises:
        UsageError: It is no TOML, has a key that is none, or extends itself.
    """
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{name} is no valid TOML: {error}") from None
    file = File(name, text, values)
    for key, value in values.items():
        if key not in KEYS:
            file.unknown((key,), "key", key, KEYS)
        if key in TEXTS and not isinstance(value, str):
            file.fail((key,), f"{key} is {value!r}, and should be a text")
        if key in TABLES and not isinstance(value, dict):
            file.fail((key,), f"{key} is {value!r}, and should be a table")
    below = values.get("extends")
    if below is None:
        return file
    if not isinstance(below, str):
        file.fail(("extends",), f"extends is {below!r}, and should name a file")
    other, content, further = load(below)
    if other in (*seen, name):
        file.fail(("extends",), f"{below} extends this file in turn")
    return replace(file, below=open_file(content, other, further, (*seen, name)))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables, the second's winning key by key."""
    merged = dict(under)
    for key, value in over.items():
        here = merged.get(key)
        both = isinstance(here, dict) and isinstance(value, dict)
        merged[key] = _merge(here or {}, value) if both else value
    return merged


def _depth(values: Any, path: tuple[str, ...]) -> int:  # noqa: ANN401 - from a file
    depth = 0
    for key in path:
        if not isinstance(values, dict) or key not in values:
            break
        values, depth = values[key], depth + 1
    return depth

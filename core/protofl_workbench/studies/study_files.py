"""Study files: TOML, the files that they extend, and the line of a mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter, ValidationError

from protofl.errors import UsageError, unknown
from protofl.system.files.tables import parse_toml

_HEADER = re.compile(r"\s*\[+\s*(?P<path>[^\[\]]+?)\s*\]+\s*(#.*)?$")
_KEY = re.compile(r"\s*(?P<key>(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[^\s=]+)*)\s*=")
_PART = re.compile(r"\"[^\"]*\"|'[^']*'|[^.\s]+")


def line_of(text: str, path: Sequence[str]) -> int:
    """The line, from 1, of the deepest key of a path that the text has; 0 where it has none.

    Args:
        text: The file.
        path: Tables and a key, as ``("rows", "fedtgp", "set")``.
    """
    wanted, table = tuple(path), tuple[str, ...]()
    best, depth, inside = 0, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:  # of a text over several lines
            inside = "" if line.count(inside) % 2 else inside
            continue
        here: tuple[str, ...] = ()
        if header := _HEADER.match(line):
            table = here = _parts(header["path"])
        elif key := _KEY.match(line):
            here = (*table, *_parts(key["key"]))
            inside = next((q for q in ('"""', "'''") if line.count(q) % 2), "")
        common = _common(here, wanted)
        if here and common == len(here) and common > depth:
            best, depth = number, common
    return best


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    pairs = zip(one, two, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


TEXTS = ("title", "paper", "place", "kind", "variant")
TABLES = ("options", "rows", "columns", "published", "scales", "variants", "constants", "files")
KEYS = (*TEXTS, *TABLES, "extends", "figure", "chosen", "draw")

PLAIN = {"a valid dictionary": "a table", "a valid integer": "an integer", "a valid": "a"}
"""pydantic's words in an error, and ours."""

Load = Callable[[str], "ExtendedFile"]
"""Finds what ``extends`` names."""


class ExtendedFile(NamedTuple):
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

    def expect(self, path: tuple[str, ...], value: Any, kind: Any) -> Any:  # noqa: ANN401
        """Return a value of a type, or of a pydantic model, that a key has; else fail."""
        try:
            return TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            inside = (*map(str, first["loc"]),)
            if first["type"] == "extra_forbidden":
                self.unknown((*path, *inside), "key", inside[-1], kind.model_fields)
            expected = first["msg"].replace("Input should be", "expected")
            for word, plain in PLAIN.items():
                expected = expected.replace(word, plain)
            name = ".".join((*path[-1:], *inside))
            self.fail((*path, *inside), f"{name}: {expected}, got {first['input']!r}")

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
        if key in TEXTS:
            file.expect((key,), value, str)
        if key in TABLES:
            file.expect((key,), value, dict[str, Any])
    below = values.get("extends")
    if below is None:
        return file
    file.expect(("extends",), below, str)
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

"""Reproduction files: TOML, and the files that they extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter, ValidationError

from protofl.errors import UsageError, unknown
from protofl.system.files.tables import parse_toml

TEXTS = ("title", "paper", "place", "kind", "variant")
TABLES = (
    "options",
    "rows",
    "columns",
    "published",
    "scales",
    "variants",
    "files",
    "tuning",
)
KEYS = (*TEXTS, *TABLES, "extends", "figure", "chosen", "derived", "draw")

PLAIN = {"a valid dictionary": "a table", "a valid integer": "an integer", "a valid": "a"}
"""{words of an error by pydantic: plain words}."""

Load = Callable[[str], "ExtendedFile"]
"""Loads the file that ``extends`` names."""


class ExtendedFile(NamedTuple):
    """A file that another file extends.

    Attributes:
        name: Name in errors.
        text: Content.
        load: Loads the file that this one extends: a neighbour, or an installed file.
    """

    name: str
    text: str
    load: Load


@dataclass(frozen=True)
class File:
    """A reproduction file and the file that it extends.

    Attributes:
        name: Name in errors.
        values: Parsed content.
        below: The extended file, if any.
    """

    name: str
    values: dict[str, Any]
    below: File | None = None

    def merged(self, key: str) -> dict[str, Any]:
        """Return a table, merged over the same table of the extended files."""
        under = self.below.merged(key) if self.below else {}
        return _merge(under, self.values.get(key, {}))

    def first(self, key: str) -> Any:  # noqa: ANN401 - of any type
        """Return the value of a key in this file, or in an extended file; None if missing."""
        if key in self.values:
            return self.values[key]
        return self.below.first(key) if self.below else None

    def joined(self, key: str) -> list[str]:
        """Return a list of texts; those of the extended files come first."""
        under = self.below.joined(key) if self.below else []
        return [*under, *self.expect((key,), self.values.get(key, []), list[str])]

    def fail(self, path: tuple[str, ...], what: str, near: str = "", do: str = "") -> NoReturn:
        """Raise an error about a key with its file and path."""
        raise UsageError(f"{self.where(path)}: {what}", near, do)

    def where(self, path: tuple[str, ...]) -> str:
        """Return the file of this reproduction's files that has a key, and the path of the key."""
        files = [self]
        while (file := files[-1].below) is not None:
            files.append(file)
        deepest = max(files, key=lambda file: _depth(file.values, path))
        return f"{deepest.name}, {'.'.join(path)}" if path else deepest.name

    def expect(self, path: tuple[str, ...], value: Any, kind: Any) -> Any:  # noqa: ANN401
        """Return the value of a key as a type or a pydantic model.

        Raises:
            UsageError: The value has another type.
        """
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
            self.fail((*path, *inside), f"{expected}, got {first['input']!r}")

    def unknown(self, path: tuple[str, ...], noun: str, name: str, known: Any) -> NoReturn:  # noqa: ANN401
        """Raise an error about an unknown name."""
        error = unknown(noun, name, known)
        self.fail(
            path, error.what, error.near, "the keys are in docs/how-to/write-a-reproduction.md"
        )


def open_file(text: str, name: str, load: Load, seen: tuple[str, ...] = ()) -> File:
    """Parse a reproduction file and the files that it extends.

    Raises:
        UsageError: The file is not TOML, has an unknown key, or extends itself.
    """
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{name} is not valid TOML: {error}") from None
    file = File(name, values)
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
        file.fail(("extends",), f"{below} extends this file, which extends {below}")
    return replace(file, below=open_file(content, other, further, (*seen, name)))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; `over` wins."""
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

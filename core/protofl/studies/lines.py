"""Where a key stands in a TOML file, for errors: the readers of TOML don't tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

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

"""Numbers, sizes and names as text for users."""

from __future__ import annotations

import re
from collections.abc import Iterable


def count(number: float, noun: str, plural: str = "") -> str:
    """Return ``1 round``, ``3 rounds``, ``1,200 rounds``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def round_word(schedule: str) -> str:
    """Return the word for a line of the record: ``round``, or ``step`` in a run without rounds."""
    return "round" if schedule == "rounds" else "step"


def size_text(size: float) -> str:
    """Return bytes with three digits and a unit: ``1.2 MB``."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return count(round(size), "byte")


def shape_text(shape: Iterable[int]) -> str:
    """Return ``3×32×32``."""
    return "×".join(map(str, shape))


def shortened(text: str, length: int) -> str:
    """Return a text, cut to a length if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return a text with escapes for what a terminal would obey: control and direction signs."""
    return _UNSEEN.sub(lambda match: repr(match[0])[1:-1], text)

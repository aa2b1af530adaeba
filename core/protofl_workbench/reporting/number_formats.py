"""Numbers, times and option values as text on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from protofl.system import formatting

NONE = "–"
"""Text for a missing figure."""

THIN, WIDE = "\u202f", "\u00a0"
"""Spaces between thousands and before a unit, which do not break a line."""


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share: ``93.1 %``."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{WIDE}%"


def spread(mean: float | None, std: float | None) -> str:
    """Return a mean with its deviation, if there is one: ``93.1 ± 0.4 %``."""
    if mean is None or std is None or not math.isfinite(mean + std):
        return percent(mean)
    return f"{100 * mean:.1f} ± {100 * std:.1f}{WIDE}%"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with significant digits and spaces between thousands."""
    if value is None or not math.isfinite(value):
        return NONE
    if float(value) == int(value) and abs(value) < 1e15:
        return integer(value)
    return f"{value:.{digits}g}".replace("-", "−")


def integer(value: float) -> str:
    """Return an integer with spaces between thousands."""
    return f"{round(value):,}".replace(",", THIN).replace("-", "−")


def amount(size: float) -> str:
    """Return bytes: ``8.6 MB``."""
    return formatting.size_text(size).replace(" ", WIDE)


def duration(seconds: float) -> str:
    """Return a time: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 days 4 h``."""
    if seconds < 10:
        return f"{seconds:.2g}{WIDE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days = hours // 24 if hours >= 48 else 0
    units = [(days, " days"), (hours - 24 * days, f"{WIDE}h"), (minutes, f"{WIDE}min")]
    units.append((rest, f"{WIDE}s"))
    first = next(n for n, (count, _) in enumerate(units) if count)
    return " ".join(f"{count}{unit}" for count, unit in units[first : first + 2] if count)


def count(how_many: int, noun: str) -> str:
    """Return ``1 client``, ``20 clients``."""
    return formatting.count(how_many, noun).replace(",", THIN)


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return ``a, b and c``; of many names the first ones and the number of others."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def day(stamp: str) -> str:
    """Return the day of a recorded time: ``22 November 2026``; empty if it is not a time."""
    try:
        date = datetime.fromisoformat(stamp)
    except ValueError:
        return ""
    return f"{date.day} {date:%B %Y}"


def sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]

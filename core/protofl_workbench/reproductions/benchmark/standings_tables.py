"""Cells of standings, which pages and the terminal show alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from protofl_workbench.comparing.figure_table import markdown
from protofl_workbench.reproductions.benchmark.standings import (
    BETTER,
    EQUAL,
    OPEN,
    WORSE,
    Standing,
)

Rows = Iterable[Sequence[str]]

MARKS = {BETTER: "▲", WORSE: "▼", EQUAL: "=", OPEN: "?", "": ""}
"""Signs of the outcomes."""


def percent(share: float) -> str:
    """Return a share in %, without the sign; empty if it is not known."""
    return _number(100 * share, ".1f")


def gap(standing: Standing) -> str:
    """Return a gap in points, half of its interval, and the sign of its outcome."""
    half = _number(50 * (standing.high - standing.low), ".1f")
    text = _number(100 * standing.gap, "+.1f") + (f" ± {half}" if half else "")
    return f"{text} {MARKS[standing.outcome]}".rstrip()


def megabytes(size: float) -> str:
    """Return bytes in MB; empty if they are not known."""
    return _number(size / 1e6, ".3g")


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


CELLS: dict[str, Callable[[Standing], str]] = {
    "method": lambda s: s.method,
    "gap": gap,
    "accuracy %": lambda s: percent(s.accuracy),
    "p": lambda s: "≤ 0.001" if s.p <= 0.001 else _number(s.p, ".3f"),
    "worst client %": lambda s: percent(s.worst),
    "worse off %": lambda s: _number(100 * s.worse_off, ".0f"),
    "MB up": lambda s: megabytes(s.upload),
    "MB down": lambda s: megabytes(s.download),
    "round": lambda s: _number(s.rounds, ".0f"),
    "batches": lambda s: _number(s.batches, ",.0f"),
    "lr": lambda s: _number(s.rate, "g"),
    "weight": lambda s: s.weight,
    "seeds": lambda s: f"{s.seeds}" + f" ({s.diverged} diverged)" * bool(s.diverged),
}
"""{heading: text of a method in a setting}, empty if it is not known."""


def cells(standing: Standing, headings: Sequence[str]) -> list[str]:
    """Return the texts of a method below these headings."""
    return [CELLS[heading](standing) for heading in headings]


def markdown_table(columns: Sequence[str], rows: Rows, *, sortable: bool = False) -> str:
    """Return a table in Markdown with numbers on the right.

    Args:
        columns: Headings, which are Markdown.
        rows: Cells as plain text.
        sortable: Put it in an element that the site sorts by; it does nothing elsewhere.
    """
    lines = [f"| {' | '.join(columns)} |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    lines += [f"| {' | '.join(map(markdown, row))} |" for row in rows]
    if sortable:
        lines = ["<div data-sort markdown>", "", *lines, "", "</div>"]
    return "\n".join(lines)

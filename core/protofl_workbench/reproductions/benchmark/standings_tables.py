"""Cells of standings, which pages and the terminal show alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from protofl.system.formatting import count
from protofl_workbench.comparing.figure_table import markdown
from protofl_workbench.reproductions.benchmark.standings import Standing

Rows = Iterable[Sequence[str]]


def percent(share: float | None) -> str:
    """Return a share in %, without the sign; empty if it is not known."""
    return _number(None if share is None else 100 * share, ".1f")


def interval(low: float | None, high: float | None) -> str:
    """Return both ends of an interval of shares in %; empty without an interval."""
    return f"{percent(low)} … {percent(high)}" if percent(low) else ""


def accuracy(share: float | None, seeds: int) -> str:
    """Return an accuracy in %, with the number of seeds if there are fewer than three."""
    return percent(share) + (f" ({count(seeds, 'seed')})" if seeds < 3 else "")


def megabytes(size: float | None) -> str:
    """Return bytes in MB; empty if they are not known."""
    return _number(None if size is None else size / 1e6, ".3g")


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


CELLS: dict[str, Callable[[Standing], str]] = {
    "method": lambda s: s.method,
    "accuracy %": lambda s: accuracy(s.accuracy, s.seeds),
    "interval": lambda s: interval(s.low, s.high),
    "global %": lambda s: percent(s.global_accuracy),
    "worst client %": lambda s: percent(s.worst),
    "worse off (chance)": lambda s: (
        "" if math.isnan(s.worse_off) else f"{s.worse_off:.1f} ({s.chance:.1f})"
    ),
    "MB up": lambda s: megabytes(s.upload),
    "MB down": lambda s: megabytes(s.download),
    "round": lambda s: _number(s.rounds, ".0f"),
    "s/round": lambda s: _number(s.seconds, ".2f"),
    "lr": lambda s: _number(s.rate, "g"),
    "weight": lambda s: s.weight,
    "mean rank": lambda s: _number(s.mean_rank, ".2f"),
    "rank": lambda s: str(s.rank or ""),
    "groups": lambda s: s.groups,
    "seeds": lambda s: str(s.seeds),
}
"""{heading: text of a method in a setting}, empty if it is not known."""


def cells(standing: Standing, columns: Sequence[str]) -> list[str]:
    """Return the cells of a row; columns are keys of `CELLS`."""
    return [CELLS[column](standing) for column in columns]


def place(rank: int | None, ranked: int) -> str:
    """Return ``3 of 25``; empty for a method that is not ranked."""
    return f"{rank} of {ranked}" if rank else ""


def markdown_table(columns: Sequence[str], rows: Rows, *, sortable: bool = False) -> str:
    """Return a Markdown table; numbers are on the right.

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

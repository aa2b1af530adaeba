"""Numbers as the page shows them: in sentences, and in the tables below pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from protofl.records.folder.row import Row
from protofl.system import formatting
from protofl.system.formatting import size_text
from protofl_workbench.comparing.run_figures import Figure
from protofl_workbench.reporting.parts import Table
from protofl_workbench.reporting.told import Moments, Told

NONE = "–"
"""What stands where there is no figure."""

THIN, WIDE = "\u202f", "\u00a0"
"""Between thousands, and before a unit: neither breaks a line."""


def percent(share: float | None, digits: int = 1) -> str:
    """A share: ``93.1 %``."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{WIDE}%"


def points(share: float, digits: int = 1) -> str:
    """A difference of shares with its sign, in percentage points."""
    if not math.isfinite(share):
        return NONE
    sign = "−" if round(100 * share, digits) < 0 else "+"
    return f"{sign}{abs(100 * share):.{digits}f}"


def spread(mean: float | None, std: float | None, digits: int = 1) -> str:
    """A mean with its deviation: ``93.1 ± 0.4 %``; without one where there is none."""
    if mean is None or std is None or not math.isfinite(mean + std):
        return percent(mean, digits)
    return f"{100 * mean:.{digits}f} ± {100 * std:.{digits}f}{WIDE}%"


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many digits that count, thousands apart."""
    if value is None or not math.isfinite(value):
        return NONE
    if float(value) == int(value) and abs(value) < 1e15:
        return whole(value)
    text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def whole(value: float) -> str:
    """A whole number, thousands apart."""
    return f"{round(value):,}".replace(",", THIN).replace("-", "−")


def amount(size: float) -> str:
    """Bytes: ``8.6 MB``."""
    return size_text(size).replace(" ", WIDE)


def duration(seconds: float) -> str:
    """A time: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 days 4 h``."""
    if seconds < 10:
        return f"{seconds:.2g}{WIDE}s"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}{WIDE}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}{WIDE}min" + (f" {rest}{WIDE}s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}{WIDE}h" + (f" {minutes}{WIDE}min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} days" + (f" {hours}{WIDE}h" if hours else "")


def count(how_many: int, noun: str) -> str:
    """``1 client``, ``20 clients``."""
    return formatting.count(how_many, noun).replace(",", THIN)


def listed(names: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; of many the first, and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def day(stamp: str) -> str:
    """The day of a time as the record has it: ``22 November 2026``; nothing of what is none."""
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        return ""
    return f"{found.day} {found:%B %Y}"


def sentence(text: str) -> str:
    """Text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


ROWS = 60
"""Rows of a picture's numbers at most; of more rounds every n-th and the last are told."""

FEW = 12
"""Groups at most of which figures stand beside each other in a table of rounds."""


def reader(figure: Figure) -> Callable[[Row], float | None]:
    """Reads a figure in a line."""
    return figure.read


def rounds_table(
    caption: str, series: Mapping[str, Mapping[int, Moments]], *, share: bool = False
) -> Table | None:
    """Curves as a table of rounds; None of so many curves that nobody would read it."""
    if len(series) > FEW:
        return None
    rounds = sorted({round for own in series.values() for round in own})
    step = -(-len(rounds) // ROWS)
    shown = [r for n, r in enumerate(rounds) if n % step == 0 or n == len(rounds) - 1]
    columns = ("round", *series)

    def cell(own: Mapping[int, Moments], round: int) -> str:
        if round not in own:
            return NONE
        moments = own[round]
        if share:
            return spread(moments.mean, moments.std)
        return number(moments.mean)

    rows = [(str(r + 1), *(cell(own, r) for own in series.values())) for r in shown]
    return Table(caption, columns, rows, all_but_first(columns), folded=True)


def clients_table(own: Told) -> Table:
    """Accuracy and data of each client, at most a thousand, the worst first."""
    held = own.split
    rows = []
    for client, moments in sorted(own.clients.items(), key=lambda item: item[1].mean):
        row = [f"client {client}", spread(moments.mean, moments.std)]
        if held is not None and client < len(held.train_counts):
            train, test = held.train_counts[client], held.test_counts[client]
            row += [whole(train.sum()), whole(test.sum()), str(int((train + test > 0).sum()))]
        rows.append(row)
    columns: tuple[str, ...] = ("client", "accuracy")
    columns += ("training samples", "test samples", "classes") if held is not None else ()
    return Table(
        "Clients: the numbers", columns, rows, all_but_first(columns), sortable=True, folded=True
    )


def all_but_first(columns: Sequence[str]) -> frozenset[int]:
    """All columns but the first."""
    return frozenset(range(1, len(columns)))

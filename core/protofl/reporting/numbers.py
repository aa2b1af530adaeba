"""The numbers that pictures show, as tables below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protofl.comparing.trials import Figure, at
from protofl.reporting.parts import Table
from protofl.reporting.told import Moments, Told
from protofl.reporting.words import NONE, number, spread, whole

ROWS = 60
"""Rows of a picture's numbers at most; of more rounds every n-th and the last are told."""

FEW = 12
"""Groups at most of which figures stand beside each other in a table of rounds."""


def reader(figure: Figure) -> Callable[[Mapping[str, Any]], float | None]:
    """Reads a figure in a line."""
    source = figure.source
    return source if callable(source) else lambda row: at(row, source)


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

"""Descriptions of pictures for readers who do not see them, and tables of their numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from protofl.data.task_names import STRATA, score_name, task_name
from protofl_workbench.reporting.group_record import GroupRecord, Moments
from protofl_workbench.reporting.number_formats import (
    NONE,
    count,
    integer,
    listed,
    number,
    percent,
    sentence,
    spread,
)
from protofl_workbench.reporting.page_parts import PageTable

Series = Mapping[int, Moments]
"""{round, from 0: a figure}."""

MOST = 8
"""Largest number of curves that are described one by one."""

ROWS, COLUMNS = 60, 12
"""Largest numbers of rounds and groups in a table of a picture's numbers."""


def curves_text(
    title: str,
    series: Mapping[str, Series],
    shown: Callable[[float], str] = number,
    *,
    more_is_better: bool = True,
) -> str:
    """Describe curves over rounds: beginning, end and best value of up to `MOST` curves.

    Args:
        title: Title of the picture.
        series: {curve: {round: figure}}.
        shown: Formats a figure.
        more_is_better: True if the best value is the largest.
    """
    curves = {name: curve for name, curve in series.items() if curve}
    if not curves:
        return f"{sentence(title)}: nothing was recorded."
    lines = []
    for name, curve in [*curves.items()][:MOST]:
        rounds = list(curve)
        best = (max if more_is_better else min)(rounds, key=lambda r: curve[r].mean)
        first, last, top = (
            f"{shown(curve[r].mean)} in round {r + 1}" for r in (rounds[0], rounds[-1], best)
        )
        description = f"from {first} to {last}" if len(rounds) > 1 else first
        description += f", best {top}" if best not in (rounds[0], rounds[-1]) else ""
        lines.append(f"{name}: {description}." if len(curves) > 1 else f"{sentence(description)}.")
    lines += [f"And {len(curves) - MOST} curves more."] if len(curves) > MOST else []
    return f"{sentence(title)} over rounds. {' '.join(lines)}"


def clients_text(groups: Sequence[GroupRecord]) -> str:
    """Describe the accuracies of clients by group: worst, median and best."""
    lines = []
    for record in groups[:MOST]:
        ranks = [moments.mean for moments in record.ranks]
        of = f"{record.group.label}: " if len(groups) > 1 else ""
        lines.append(
            f"{of}{count(len(ranks), 'client')}, from {percent(ranks[0])} to "
            f"{percent(ranks[-1])}, half of them above {percent(statistics.median(ranks))}."
        )
    rest = len(groups) - MOST
    return " ".join(lines) + (f" And {rest} groups more." if rest > 0 else "")


def bars_text(title: str, values: Mapping[str, str]) -> str:
    """Describe bars by their formatted figures."""
    return f"{sentence(title)}: {listed([f'{name} {v}' for name, v in values.items()], 12)}."


def split_text(
    table: Sequence[Sequence[int]], classes: Sequence[str], parts: str = "classes"
) -> str:
    """Describe a split: sizes of clients, and their numbers of classes, or of other parts."""
    sizes = [sum(map(int, row)) for row in table]
    held = [sum(1 for n in row if n) for row in table]
    span = f"{min(held)} to {max(held)}" if min(held) < max(held) else f"{held[0]}"
    return (
        f"Samples of each of {len(classes)} {parts} at each of {count(len(table), 'client')}, as "
        f"bubbles. Clients have {number(min(sizes))} to {number(max(sizes))} samples of {span} "
        f"{parts}."
    )


def confusion_text(shares: Sequence[Sequence[float]], classes: Sequence[str]) -> str:
    """Describe a confusion matrix by its best and its worst class."""
    hits = {classes[i]: row[i] for i, row in enumerate(shares) if sum(row)}
    if not hits:
        return "A confusion matrix without samples."
    worst, best = min(hits, key=lambda c: hits[c]), max(hits, key=lambda c: hits[c])
    return (
        f"Confusion matrix of {len(classes)} classes. Most often correct: {best} "
        f"({percent(hits[best])}), least often: {worst} ({percent(hits[worst])})."
    )


# --- tables ---------------------------------------------------------------------------------------


def numbers_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, sortable: bool = False
) -> PageTable:
    """Return the folded table of a picture's numbers."""
    numbers = frozenset(range(1, len(columns)))
    return PageTable(
        f"{title}: the numbers", columns, rows, numbers, sortable=sortable, folded=True
    )


def rounds_table(
    title: str, series: Mapping[str, Series], *, share: bool = False
) -> PageTable | None:
    """Return curves as a table of rounds; None if there are too many curves."""
    if len(series) > COLUMNS:
        return None
    rounds = sorted({round for curve in series.values() for round in curve})
    step = -(-len(rounds) // ROWS)
    shown = [r for n, r in enumerate(rounds) if n % step == 0 or n == len(rounds) - 1]

    def cell(moments: Moments | None) -> str:
        if moments is None:
            return NONE
        return spread(moments.mean, moments.std) if share else number(moments.mean)

    rows = [(str(r + 1), *(cell(curve.get(r)) for curve in series.values())) for r in shown]
    return numbers_table(title, ("round", *series), rows)


def clients_table(record: GroupRecord) -> PageTable:
    """Return the accuracy and data of each client, the worst first.

    If trials have different splits, client 3 of one trial is not client 3 of another: then the rows
    are the ranks of clients within their trials.
    """
    if not record.clients:
        ranks = [(f"rank {n}", spread(m.mean, m.std)) for n, m in enumerate(record.ranks, 1)]
        return numbers_table(
            "Clients", ("rank in each trial", score_name(record.config)), ranks, sortable=True
        )
    split, rows = record.split, []
    for client, moments in sorted(record.clients.items(), key=lambda item: item[1].mean):
        name = f"client {client}" if split is None else split.name_of(client)
        row = [name, spread(moments.mean, moments.std)]
        if split is not None and client < len(split.train_counts):
            train, test = split.train_counts[client], split.test_counts[client]
            row += [integer(train.sum()), integer(test.sum()), str(int((train + test > 0).sum()))]
        rows.append(row)
    columns = ["client", score_name(record.config)]
    if split is not None:
        columns += ["training samples", "test samples", STRATA[task_name(record.config)][1]]
    return numbers_table("Clients", columns, rows, sortable=True)

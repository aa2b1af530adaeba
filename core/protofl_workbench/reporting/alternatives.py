"""What a picture shows, in words, for readers who don't see it; made from its numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from protofl_workbench.reporting.numbers import count, listed, number, percent, sentence
from protofl_workbench.reporting.told import Moments

Series = Mapping[int, Moments]
"""{round, from 0: a figure}."""

MOST = 8
"""Curves that are told of one by one; of more the first and the last by their end."""


def share(value: float) -> str:
    """A share as `percent` words it."""
    return percent(value)


def over_rounds(
    what: str,
    series: Mapping[str, Series],
    shown: Callable[[float], str] = number,
    *,
    more_is_better: bool = True,
) -> str:
    """Curves over rounds: where each begins, where it ends, and its best.

    Args:
        what: What is shown.
        series: {curve: {round: figure}}.
        shown: How a figure is written.
        more_is_better: Whether the best is the largest.
    """
    told = {name: own for name, own in series.items() if own}
    if not told:
        return f"{sentence(what)}: nothing was recorded."
    if len(told) > MOST:
        return _many(what, told, shown, more_is_better=more_is_better)
    several = len(told) > 1
    lines = [
        _course(own, shown, more_is_better=more_is_better, of=f"{name} " if several else "")
        for name, own in told.items()
    ]
    band = any(m.std is not None for own in told.values() for m in own.values())
    mean = ", mean over trials, with a band of one standard deviation" if band else ""
    return f"{sentence(what)} over rounds{mean}. {' '.join(lines)}"


def _course(
    own: Series, shown: Callable[[float], str], *, more_is_better: bool, of: str = ""
) -> str:
    """One curve in a sentence."""
    rounds = list(own)
    first, last = own[rounds[0]].mean, own[rounds[-1]].mean
    if len(rounds) == 1:
        return sentence(f"{of}has {shown(first)} in round {rounds[0] + 1}.")
    verb = "rises" if last > first else "falls" if last < first else "goes"
    if shown(first) == shown(last):
        verb = "goes"
    best = (max if more_is_better else min)(rounds, key=lambda r: own[r].mean)
    text = f"{of or 'it '}{verb} from {shown(first)} in round {rounds[0] + 1} to {shown(last)} in "
    text += f"round {rounds[-1] + 1}"
    if best != rounds[-1] and shown(own[best].mean) not in (shown(last), shown(first)):
        text += f"; its {'highest' if more_is_better else 'lowest'} is {shown(own[best].mean)} in "
        text += f"round {best + 1}"
    return sentence(text) + "."


def _many(
    what: str, told: Mapping[str, Series], shown: Callable[[float], str], *, more_is_better: bool
) -> str:
    ends = {name: own[max(own)].mean for name, own in told.items()}
    order = sorted(ends, key=lambda name: ends[name], reverse=more_is_better)
    top = listed([f"{name} with {shown(ends[name])}" for name in order[:3]])
    return (
        f"{sentence(what)} over rounds of {len(told)} groups. At the end {top} are ahead, and "
        f"{order[-1]} is last with {shown(ends[order[-1]])}."
    )


def over_clients(clients: Mapping[str, Sequence[float]]) -> str:
    """The accuracy of clients, by group: the worst, the middle, the best."""
    lines = []
    for name, values in list(clients.items())[:MOST]:
        ordered = sorted(values)
        of = f"{name}: " if len(clients) > 1 else ""
        lines.append(
            f"{of}{count(len(ordered), 'client')}, from {percent(ordered[0])} to "
            f"{percent(ordered[-1])}, half of them above {percent(statistics.median(ordered))}."
        )
    rest = len(clients) - MOST
    return " ".join(lines) + (f" And {rest} groups more." if rest > 0 else "")


def as_bars(what: str, values: Mapping[str, str]) -> str:
    """Bars, each with its figure as it is written."""
    told = [f"{name} {value}" for name, value in values.items()]
    return f"{sentence(what)}: {listed(told, 12)}."


def of_split(table: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """How samples are dealt out: sizes of clients, and how many classes they hold."""
    sizes = [sum(map(int, row)) for row in table]
    held = [sum(1 for n in row if n) for row in table]
    span = f"{min(held)} to {max(held)}" if min(held) < max(held) else f"{held[0]}"
    return (
        f"Samples of each of {len(classes)} classes at each of {count(len(table), 'client')}, as "
        f"bubbles. Clients have {number(min(sizes))} to {number(max(sizes))} samples of {span} "
        "classes."
    )


def of_confusion(shares: Sequence[Sequence[float]], classes: Sequence[str]) -> str:
    """Which classes are recognised best and worst, and what is mixed up most."""
    hits = {classes[i]: row[i] for i, row in enumerate(shares) if sum(row)}
    if not hits:
        return "A confusion matrix without samples."
    worst, best = min(hits, key=lambda c: hits[c]), max(hits, key=lambda c: hits[c])
    wrong = [
        (v, classes[i], classes[j])
        for i, row in enumerate(shares)
        for j, v in enumerate(row)
        if i != j and v > 0
    ]
    text = f"Confusion matrix of {len(classes)} classes. {best} is recognised best "
    text += f"({percent(hits[best])}), {worst} worst ({percent(hits[worst])})."
    if wrong:
        most = max(wrong)
        text += f" Most often {most[1]} is taken for {most[2]} ({percent(most[0])})."
    return text

"""Runs beside each other: means, differences of pairs, and what chance makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from protofl.errors import UsageError, unknown
from protofl.system.formatting import count
from protofl_workbench.comparing import statistics
from protofl_workbench.comparing.comparison import Comparison
from protofl_workbench.comparing.differences import Difference, Row, Table
from protofl_workbench.comparing.groups import Group, Runs, grouped
from protofl_workbench.comparing.matching import Block, blocks, finished, pairs
from protofl_workbench.comparing.reaching import Reaching, machine_of, recorded_costs
from protofl_workbench.comparing.selection import WHEN, Reading, reading
from protofl_workbench.comparing.standing import diverged
from protofl_workbench.comparing.trials import Trial

FURTHER = (
    *("worst", "decile", "std", "gini", "macro-f1", "balanced-accuracy", "server-accuracy"),
    *("unseen-accuracy", "fine-tuned-accuracy"),
)
"""Figures that are compared beside accuracy where all runs have them and none is named."""


def compare(
    runs: Runs,
    figures: str | Sequence[str] = (),
    *,
    target: float | None = None,
    baseline: str = "",
    unpaired: bool = False,
    by: str | Sequence[str] = (),
    rounds: int | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare runs, paired over seeds and splits.

    Args:
        runs: Runs, their folders, or a mapping of labels to them. Runs without labels are grouped
            by what differs between them.
        figures: ``final``, ``best`` (on test samples), ``validation``: the test accuracy then; or
            another figure in the last round, or as ``FIGURE@best``. Where none is named these, the
            spread over clients, macro F1 and balanced accuracy, as far as every trial has them.
        target: An accuracy, 0 to 1: what it took to reach it, in rounds, MB, seconds and FLOPs.
        baseline: The group (or its method) that the others are held against; the first by default.
        unpaired: Whether to compare runs on other data, or with other seeds and splits, too.
        by: Options by which runs are grouped.
        rounds: So many rounds of each trial count.
        confidence: Of the bootstrap intervals.

    Returns:
        A table for each figure and the data that runs share. Trials that are not finished are left
        out, and told.

    Raises:
        UsageError: Runs can't be compared: they are on other data, scored in another way, split
            otherwise under one seed, or have no seed in common; or a figure is not recorded.

    Examples:
        >>> print(pf.compare(["runs/fedproto", "runs/fedtgp"], target=0.8))  # doctest: +SKIP
    """
    _check(target, confidence, rounds)
    notes: list[str] = []
    if unpaired:
        found = [
            Block("all runs", tuple(finished(grouped(runs, by, settings=not by), rounds, notes)))
        ]
    else:
        found = blocks(runs, by, rounds, notes)
    mains = _baselines(found, baseline, notes)
    trials = [trial for block in found for group in block.groups for trial in group.trials]
    names = [figures] if isinstance(figures, str) else list(figures)
    wanted = [reading(name) for name in names] or _usual(trials)
    asked: list[Reading | Reaching] = [*wanted]
    if target is not None:
        asked += [Reaching(cost, target) for cost in recorded_costs(trials)]
    shown = names or [own.name for own in wanted if own.name in WHEN]
    tables = [
        _table(block, own, main, unpaired, confidence)
        for block, main in zip(found, mains, strict=True)
        for own in asked
    ]
    every = {str(trial.run.config.get("eval_every", 1)) for trial in trials}
    if len(every) > 1 and any(own.when != "final" for own in wanted):
        words = " or ".join(sorted(every))
        notes.append(f"evaluated every {words} rounds: the best of more rounds is better by chance")
    lost = [(trial, diverged(trial.rows)) for trial in trials]
    notes += [f"{trial.name} diverged in round {n + 1}" for trial, n in lost if n is not None]
    notes += _explained(tables, shown, not unpaired, confidence)
    return Comparison(tuple(tables), tuple(notes), not unpaired, tuple(shown))


def _baselines(blocks: Sequence[Block], name: str, notes: list[str]) -> list[str]:
    """The baseline of each block; the first group where one lacks it, which is told."""
    found: list[str] = []
    lacking = []
    for block in blocks:
        if len(block.groups) == 1:
            found.append("")
            continue
        try:
            found.append(baseline_of(block.groups, name))
        except UsageError as error:
            found.append(block.groups[0].label)
            lacking.append(error)
            notes.append(f"{block.title} has no {name}: the baseline is {block.groups[0].label}")
    if lacking and len(lacking) == sum(len(block.groups) > 1 for block in blocks):
        raise lacking[0]
    return found


def baseline_of(groups: Sequence[Group], name: str) -> str:
    """The label of the group that is meant.

    Raises:
        UsageError: There is none, or there are several of a method.
    """
    labels = [group.label for group in groups]
    if not name or name in labels:
        return name or labels[0]
    of_method = [label for label in labels if label.startswith(f"{name},")]
    if len(of_method) > 1:
        raise UsageError(
            f"--baseline {name} are several groups", "; ".join(of_method), "give one of these"
        )
    if not of_method:
        raise unknown("baseline", name, labels, "give the name of a group")
    return of_method[0]


def _check(target: float | None, confidence: float, rounds: int | None) -> None:
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target {target:g}", "an accuracy is more than 0 and 1 at most", "0.8")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence {confidence:g}", "it is more than 0 and less than 1")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}", "it is 1 at least")


def _usual(trials: Sequence[Trial]) -> list[Reading]:
    """The figures that are compared where none is named: those that every trial has."""
    found = [reading("final"), reading("best")]
    if all(trial.has("validation-accuracy") for trial in trials):
        found.append(reading("validation"))
    few = all(trial.run.config["clients"] <= 10 for trial in trials)  # the lowest tenth is one
    names = [name for name in FURTHER if not (name == "decile" and few)]
    return [*found, *(reading(n) for n in names if all(trial.has(n) for trial in trials))]


def _table(
    block: Block, figure: Reading | Reaching, main: str, unpaired: bool, confidence: float
) -> Table:
    about = figure.about if isinstance(figure, Reading) else figure
    of = {g.label: {id(t): figure.of(t) for t in g.trials} for g in block.groups}
    against = next((g for g in block.groups if g.label == main), None)
    rows = []
    for group in block.groups:
        own = of[group.label]
        difference = None
        if against is not None and group is not against:
            difference = _difference(group, against, of, about.lower, unpaired, confidence)
        seeds = tuple(trial.seed for trial in group.trials)
        rows.append(Row(group.label, seeds, tuple(own.values()), difference))
    corrected = iter(statistics.holm([r.difference.p for r in rows if r.difference]))
    rows = [
        replace(row, difference=replace(row.difference, holm=next(corrected)))
        if row.difference
        else row
        for row in rows
    ]
    seconds = isinstance(figure, Reaching) and figure.cost == "seconds"
    machines = {machine_of(trial) for group in block.groups for trial in group.trials}
    return Table(
        block.title, figure.name, figure.title, about.share, about.lower,
        main if against is not None else "", tuple(rows), seconds and len(machines) > 1,
    )  # fmt: skip


def _difference(
    group: Group,
    against: Group,
    of: dict[str, dict[int, float]],
    lower: bool,
    unpaired: bool,
    confidence: float,
) -> Difference:
    ours, theirs = of[group.label], of[against.label]
    if unpaired:
        own, other = (
            np.array([v for v in s.values() if not math.isnan(v)]) for s in (ours, theirs)
        )
        low, high = (math.nan, math.nan)
        if len(own) and len(other):
            low, high = statistics.interval(own, other, confidence)
        mean = float(own.mean() - other.mean()) if len(own) and len(other) else math.nan
        p = statistics.mann_whitney(own, other)
        return Difference(len(own), mean, math.nan, low, high, p, p, 0, 0)
    both = [(ours[id(a)], theirs[id(b)]) for a, b in pairs(group, against)]
    found = np.array([a - b for a, b in both if not math.isnan(a - b)])
    low, high = statistics.interval(found, (), confidence)
    p = statistics.wilcoxon(found)
    gained = -found if lower else found
    return Difference(
        count=len(found),
        mean=float(found.mean()) if len(found) else math.nan,
        std=float(found.std()) if len(found) else math.nan,
        low=low,
        high=high,
        p=p,
        holm=p,
        better=int((gained > 0).sum()),
        worse=int((gained < 0).sum()),
    )


def _explained(
    tables: Sequence[Table], shown: Sequence[str], paired: bool, confidence: float
) -> list[str]:
    """What has to be known to read the tables."""
    notes = ["± is the (population) standard deviation over trials"]
    if any(table.name.partition("@")[2] == "best" or table.name == "best" for table in tables):
        notes.append("best on test: the round is chosen on the test samples, as the papers do")
    short = [t.name for t in tables if any(0 < len(r.found) < len(r.values) for r in t.rows)]
    if any("-to-" in name for name in short):
        notes.append(
            "(3/4): so many of the trials reached the accuracy, and the mean is over these"
        )
    if any("-to-" not in name for name in short):
        notes.append("(3/4): in so many of the trials it was finite, and the mean is over these")
    if any(table.machines for table in tables):
        notes.append("†: seconds of machines, devices, backends or versions that differ")
    seen = [table for table in tables if table.name in shown]
    differences = [r.difference for t in seen for r in t.rows if r.difference is not None]
    if not differences:
        return notes
    if paired:
        least = min(d.count for d in differences)
        bound = statistics.least_p(least)
        notes.append(
            "p: Wilcoxon's signed-rank test over pairs of one seed and split, two-sided, exact"
            + f"; with {count(least, 'pair')} it can't be below {bound:.3g}" * (bound > 0.01)
        )
    else:
        notes.append("p: Mann-Whitney U test of unpaired samples, two-sided")
    if max(sum(r.difference is not None for r in t.rows) for t in seen) > 1:
        notes.append("Holm: p corrected for the comparisons with the baseline in one figure")
    notes.append(
        f"interval: {confidence:.0%} BCa bootstrap of the mean difference, "
        f"{statistics.RESAMPLES:,} resamples; of fewer than six pairs it is too narrow"
    )
    return notes

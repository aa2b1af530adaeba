"""McNemar's test of two methods over recorded predictions (``--record-predictions``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from protofl.errors import UsageError
from protofl.system.formatting import count
from protofl_workbench.comparing import statistics
from protofl_workbench.comparing.figure_table import Difference, FigureTable, GroupFigure
from protofl_workbench.comparing.pairing import Setting, paired_trials
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.trial_figures import trial_figure
from protofl_workbench.comparing.trials import Trial

FIGURE_OF = {"last": "final", "best": "best", "validation": "validation"}
"""{round of recorded predictions: figure of `protofl.compare` in this round}."""


@dataclass(frozen=True)
class Counts:
    """Test samples that two methods predict, and those that only one of them gets right.

    Attributes:
        samples: Test samples that both have predicted.
        ours: Samples that only the first method gets right.
        theirs: Samples that only the second method gets right.
    """

    samples: int = 0
    ours: int = 0
    theirs: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.samples + other.samples, self.ours + other.ours, self.theirs + other.theirs
        )

    @property
    def difference(self) -> Difference:
        """The difference of the accuracies, with McNemar's exact p."""
        p = statistics.mcnemar(self.ours, self.theirs)
        mean = (self.ours - self.theirs) / self.samples
        none = math.nan
        return Difference(
            self.samples, mean, none, none, none, p, p, better=self.ours, worse=self.theirs
        )


def counts_of(ours: Trial, theirs: Trial, which: str, notes: list[str]) -> Counts:
    """Count the samples that only one of two trials with the same split gets right.

    Args:
        ours: The first trial.
        theirs: The second trial.
        which: ``last``, ``best`` or ``validation``.
        notes: Takes a line about clients that only one of the trials has evaluated.

    Raises:
        UsageError: A trial has not recorded its predictions of the round, the trials have different
            test samples, or they have evaluated no client in common.
    """
    one, other = (trial.predictions(which) for trial in (ours, theirs))
    common = np.intersect1d(one.clients, other.clients)
    apart = np.setxor1d(np.unique(one.clients), np.unique(other.clients))
    if not len(common):
        raise UsageError(f"{ours.name} and {theirs.name} have evaluated no client in common")
    if len(apart):
        line = f"McNemar's test of {ours.name} and {theirs.name} leaves out "
        notes.append(line + f"{count(len(apart), 'client')} that only one of them has evaluated")
    first, second = (np.isin(p.clients, common) for p in (one, other))
    if not np.array_equal(one.clients[first], other.clients[second]) or not np.array_equal(
        one.true[first], other.true[second]
    ):
        raise UsageError(
            f"{ours.name} and {theirs.name} have different test samples",
            "their splits have the same hash, so the data differ or a file was changed",
            "compare runs on the same data",
        )
    right, theirs_right = one.right[first], other.right[second]
    return Counts(
        len(right), int((right & ~theirs_right).sum()), int((~right & theirs_right).sum())
    )


def mcnemar_tables(setting: Setting, which: str, base: str, notes: list[str]) -> list[FigureTable]:
    """Return the accuracies of a setting with McNemar's test of each group and the baseline.

    Args:
        setting: The groups.
        which: ``last``, ``best`` or ``validation``.
        base: Label of the baseline.
        notes: Takes lines about the tables.

    Returns:
        A table of all seeds, whose counts are added, and with several seeds a table of each.

    Raises:
        UsageError: See `counts_of`; or a group has no seed in common with the baseline.
    """
    against = next((group for group in setting.groups if group.label == base), None)
    counts: dict[str, dict[int, Counts]] = {}
    for group in setting.groups:
        if against is not None and group is not against:
            pairs = paired_trials(group, against, remedy="compare runs with the same seeds")
            counts[group.label] = {
                ours.seed: counts_of(ours, theirs, which, notes) for ours, theirs in pairs
            }
    seeds = sorted({trial.seed for group in setting.groups for trial in group.trials})
    tables = [_table(setting, which, base, counts, seeds)]
    if len(seeds) > 1:
        tables += [
            replace(_table(setting, which, base, counts, [seed]), seed=seed) for seed in seeds
        ]
    return tables


def _table(
    setting: Setting,
    which: str,
    base: str,
    counts: dict[str, dict[int, Counts]],
    seeds: Sequence[int],
) -> FigureTable:
    """Return the table of some seeds."""
    differences = {}
    for label, by_seed in counts.items():
        if found := [by_seed[seed] for seed in seeds if seed in by_seed]:
            differences[label] = sum(found, Counts()).difference
    corrected = statistics.holm([difference.p for difference in differences.values()])
    for label, p in zip(differences, corrected, strict=True):
        differences[label] = replace(differences[label], holm=p)
    figure = trial_figure(FIGURE_OF[which])
    rows = []
    for group in setting.groups:
        trials = [trial for trial in group.trials if trial.seed in seeds]
        if trials:
            values = tuple(figure.of(trial) for trial in trials)
            trial_seeds = tuple(trial.seed for trial in trials)
            rows.append(GroupFigure(group.label, trial_seeds, values, differences.get(group.label)))
    return FigureTable(setting.title, figure.name, figure.title, True, False, base, tuple(rows))


def check_recorded(groups: Sequence[Group], which: str) -> None:
    """Check that all trials have recorded their predictions of a round.

    Raises:
        UsageError: Some have not; the error names all of them and the option.
    """
    lacking, first = [], None
    for trial in (trial for group in groups for trial in group.trials):
        try:
            trial.predictions(which)
        except UsageError as error:
            first = first or error
            lacking.append(trial.name)
    if first is None:
        return
    if len(lacking) > 1:
        others = ", ".join(lacking[1:5]) + (", …" if len(lacking) > 5 else "")
        first.near = "; ".join(filter(None, (first.near, f"the same holds for {others}")))
    raise first


def explanations(tables: Sequence[FigureTable], which: str) -> list[str]:
    """Return notes about the test and its limits."""
    differences = [[r.difference for r in t.rows if r.difference] for t in tables]
    if not any(differences):
        return []
    notes = [
        "p: McNemar's exact two-sided test over test samples, paired by client, sample and seed; "
        "only samples that one of the two methods gets right count",
        "limit: the trained models are taken as fixed, so p says nothing about other seeds, splits "
        "or further training",
    ]
    if which == "best":
        notes.append(
            "limit: the best round was chosen on the same test samples, which p does not account "
            "for (--round validation has no such choice)"
        )
    if any(table.seed is not None for table in tables):
        notes.append(
            "several seeds: their counts are added as if all samples were independent; a sample in "
            "the test part of several seeds counts several times, so prefer the tables by seed"
        )
    if max(map(len, differences)) > 1:
        notes.append("Holm: p corrected for all comparisons with the baseline in one table")
    return notes

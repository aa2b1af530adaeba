"""Figures of groups, and their differences to a baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """A group's difference to the baseline.

    Attributes:
        count: Pairs; of unpaired samples the group's trials.
        mean: The mean difference, group − baseline.
        std: Its (population) deviation over pairs; NaN of unpaired samples.
        low: The lower end of the bootstrap interval of the mean difference.
        high: Its upper end.
        p: Of Wilcoxon's signed-rank test; of unpaired samples of the Mann-Whitney U test.
        holm: p corrected for the comparisons with this baseline.
        better: Pairs in which the group is better.
        worse: Pairs in which it is worse.
    """

    count: int
    mean: float
    std: float
    low: float
    high: float
    p: float
    holm: float
    better: int
    worse: int


@dataclass(frozen=True)
class Row:
    """A group's figure.

    Attributes:
        label: The group.
        seeds: Its trials' seeds.
        values: Their figures; NaN of a trial that has none, as it never reached an accuracy.
        difference: To the baseline; None of the baseline itself.
    """

    label: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    difference: Difference | None = None

    @property
    def found(self) -> list[float]:
        """The figures that there are."""
        return [value for value in self.values if not math.isnan(value)]

    @property
    def mean(self) -> float:
        """Their mean; NaN of none."""
        return float(np.mean(self.found)) if self.found else math.nan

    @property
    def std(self) -> float:
        """Their (population) standard deviation; NaN of none."""
        return float(np.std(self.found)) if self.found else math.nan


@dataclass(frozen=True)
class Table:
    """A figure of groups on the same data.

    Attributes:
        setting: On which data.
        name: The figure, as it is asked for.
        title: What it is.
        share: Whether it is a share, shown in %.
        lower: Whether less is better.
        baseline: The group that others are held against; empty of a single group.
        rows: The groups.
        machines: Whether machines differ, where the figure depends on them.
    """

    setting: str
    name: str
    title: str
    share: bool
    lower: bool
    baseline: str
    rows: tuple[Row, ...]
    machines: bool = False


@dataclass(frozen=True)
class Found:
    """What a comparison finds.

    Attributes:
        tables: A table for each figure, on each data.
        notes: What has to be known to read them.
        paired: Whether differences are of pairs.
        shown: Names of the figures whose differences are shown; the others are counted too.
    """

    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    paired: bool
    shown: tuple[str, ...]

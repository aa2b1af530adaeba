"""A figure of several groups of trials, and the differences to a baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The difference of a group to the baseline.

    Attributes:
        count: Number of pairs; for unpaired samples the number of trials of the group.
        mean: Mean difference, group − baseline.
        std: Population standard deviation over pairs; NaN for unpaired samples.
        low: Lower end of the bootstrap interval of the mean difference.
        high: Upper end of the interval.
        p: p of Wilcoxon's signed-rank test, or of the Mann-Whitney U test for unpaired samples.
        holm: p corrected for all comparisons with this baseline.
        better: Number of pairs in which the group is better.
        worse: Number of pairs in which the group is worse.
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
class GroupFigure:
    """A figure of one group of trials.

    Attributes:
        label: Name of the group.
        seeds: Seeds of the trials.
        values: The figure of each trial; NaN if a trial has none, such as a target not reached.
        difference: Difference to the baseline; None for the baseline itself.
    """

    label: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    difference: Difference | None = None

    @property
    def found(self) -> list[float]:
        """The values that are not NaN."""
        return [value for value in self.values if not math.isnan(value)]

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if there are none."""
        return float(np.mean(self.found)) if self.found else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation of the values; NaN if there are none."""
        return float(np.std(self.found)) if self.found else math.nan


@dataclass(frozen=True)
class FigureTable:
    """A figure of all groups on the same data.

    Attributes:
        setting: Name of the data and split.
        name: Name of the figure, as it was requested.
        title: Title of the figure.
        share: True if the figure is a share, which is shown in %.
        lower: True if lower values are better.
        baseline: Label of the baseline; empty if there is only one group.
        rows: The groups.
        machines: True if the figure depends on the machine and the machines differ.
    """

    setting: str
    name: str
    title: str
    share: bool
    lower: bool
    baseline: str
    rows: tuple[GroupFigure, ...]
    machines: bool = False

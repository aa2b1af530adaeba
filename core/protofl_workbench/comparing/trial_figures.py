"""One number of a trial: a figure in a chosen round, a cost, or the accuracies of its clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from protofl.errors import UsageError, unknown
from protofl_workbench.comparing.run_figures import COSTS, RoundFigure, figure_named
from protofl_workbench.comparing.trials import Floats, PairKey, Trial, pair_key

ROUNDS = {
    "final": "last round",
    "best": "best on test",
    "validation": "chosen on validation",
}
"""Rounds in which a figure can be read, with their titles."""

ACCURACIES = (*ROUNDS, "balanced-accuracy")
"""Figures that stand in one table, and whose differences are shown by default."""


@dataclass(frozen=True)
class TrialFigure:
    """A figure, and the round of a trial in which it is read.

    Attributes:
        name: Name as it was requested.
        figure: Name of the figure.
        when: ``final``, ``best`` or ``validation``.
    """

    name: str
    figure: str
    when: str

    @property
    def about(self) -> RoundFigure:
        """The figure."""
        return figure_named(self.figure)

    @property
    def title(self) -> str:
        """Title of the figure, and the round."""
        about = self.about
        return f"{about.title}, {ROUNDS[self.when]}{' (%)' if about.share else ''}"

    def of(self, trial: Trial) -> float:
        """Return the figure of a trial.

        ``final`` is the last round that has the figure; ``best`` the first round with the best test
        accuracy; ``validation`` the first round with the best validation accuracy. A loss that was
        not finite in this round is NaN.

        Raises:
            UsageError: The trial does not have the figure in this round.
        """
        rows = trial.rows
        place = len(rows) - 1 if self.when == "final" else chosen_place(trial, self.when)
        if rows and self.about.is_lost(rows[place]):
            return math.nan
        places, values = trial.series(self.figure)
        if self.when == "final":
            return float(values[-1])
        chosen = values[places == place]
        if not len(chosen):
            raise UsageError(
                f"{trial.name} has no {self.figure} in round {rows[place].round + 1}, the "
                f"{ROUNDS[self.when]}",
                do="read it in the last round",
            )
        return float(chosen[0])


CHANCE = "worse-off-chance"
"""The number of clients that would be worse off if both methods were equally good."""


@dataclass(frozen=True)
class WorseOff:
    """The clients that are less accurate in the last round than alone with the same seed and split.

    Attributes:
        name: ``worse-off``, their number; ``worse-off-chance``, half the number of clients whose
            accuracy differs, which is the expected number if the sign of each difference is a coin
            toss; or ``worse-off-by``, the accuracy that they lose on average.
        alone: {seed and hash of the split: the trial of ``local``}.
    """

    name: str
    alone: Mapping[PairKey, Trial]
    lower = True

    @property
    def share(self) -> bool:
        """True if it is shown in %."""
        return self.name == "worse-off-by"

    @property
    def about(self) -> WorseOff:
        """The figure itself."""
        return self

    @property
    def title(self) -> str:
        """Title of the figure."""
        titles = {"worse-off": "clients worse off than alone", CHANCE: "worse off by chance"}
        return titles.get(self.name, "what these lose (%)")

    def of(self, trial: Trial) -> float:
        """Return the figure of a trial; NaN without a trial of ``local``, or if no client loses.

        Raises:
            UsageError: The accuracies of clients are not recorded.
        """
        alone = self.alone.get(pair_key(trial))
        if alone is None:
            return math.nan
        ours, theirs = accuracies_by_client(trial), accuracies_by_client(alone)
        lost = np.array([theirs[c] - ours[c] for c in ours.keys() & theirs.keys()])
        if self.name == CHANCE:
            return float((lost != 0).sum()) / 2
        lost = lost[lost > 0]
        if not self.share:
            return float(len(lost))
        return float(lost.mean()) if len(lost) else math.nan


@dataclass(frozen=True)
class CostToTarget:
    """The cost until the test accuracy is at least a target for the first time.

    Attributes:
        cost: A name of `COSTS`.
        target: The accuracy, 0 to 1.
    """

    cost: str
    target: float
    share = False
    lower = True

    @property
    def about(self) -> CostToTarget:
        """The cost itself."""
        return self

    @property
    def name(self) -> str:
        """``rounds-to-0.8``."""
        return f"{self.cost}-to-{self.target:g}"

    @property
    def title(self) -> str:
        """``rounds to 80 %``."""
        return f"{COSTS[self.cost].unit} to {self.target * 100:.4g} %"

    def of(self, trial: Trial) -> float:
        """Return the cost of a trial; NaN if the target was never reached.

        Raises:
            UsageError: The cost is not recorded.
        """
        spent = trial.spent(self.cost)
        places, values = trial.series("accuracy")
        reached = places[values >= self.target]
        return float(spent[reached[0]]) if len(reached) else math.nan


def chosen_place(trial: Trial, when: str) -> int:
    """Return the position in a trial's rows of the first round with the best accuracy.

    Args:
        trial: The trial.
        when: ``best``, by test accuracy, or ``validation``.

    Raises:
        UsageError: The trial has no such accuracy.
    """
    chosen_by = "accuracy" if when == "best" else "validation-accuracy"
    if when == "validation" and trial.rows and not trial.has(chosen_by):
        raise UsageError(
            f"{trial.name} has no validation accuracy",
            do="run it with --validation 0.05, or read --figure final",
        )
    places, values = trial.series(chosen_by)
    return int(places[values.argmax()])


def trial_figure(name: str) -> TrialFigure:
    """Return the figure that a name stands for.

    ``final``, ``best`` and ``validation`` are the test accuracy in this round. Any other figure is
    read in the last round that has it, or as ``FIGURE@best`` in another one.

    Raises:
        UsageError: The round is unknown.
    """
    if name in ROUNDS:
        return TrialFigure(name, "accuracy", name)
    figure, _, when = name.partition("@")
    if when and when not in ROUNDS:
        raise unknown("round", when, ROUNDS, "write FIGURE@final, FIGURE@best or FIGURE@validation")
    return TrialFigure(name, figure, when or "final")


def accuracies_by_client(trial: Trial) -> dict[str, float]:
    """Return {client: accuracy} in the last evaluated round of a trial.

    Raises:
        UsageError: The accuracies are not recorded.
    """
    evaluations = [row.client_accuracies for row in trial.rows if row.client_accuracies]
    if not evaluations:
        raise UsageError(
            f"{trial.name} has no accuracy of each client",
            do="runs record them if they have at most 1,000 clients",
        )
    return {client: float(accuracy) for client, accuracy in evaluations[-1].items()}


def accuracies_by_rank(trials: Iterable[Trial]) -> Floats:
    """Return the last accuracies of clients by their rank within each trial, [trials, clients].

    Column 0 has the worst client of each trial. If trials have different numbers of clients, longer
    ones are read at the shares of the shortest.

    Args:
        trials: The trials.

    Raises:
        UsageError: The accuracies are not recorded.
    """
    each = [sorted(accuracies_by_client(trial).values()) for trial in trials]
    share = shares_of(min(map(len, each)))
    return np.stack([np.interp(share, shares_of(len(values)), values) for values in each])


def shares_of(count: int) -> Floats:
    """Return the centres of equal parts of 0 to 1, [count]."""
    centres: Floats = (np.arange(count) + 0.5) / count
    return centres

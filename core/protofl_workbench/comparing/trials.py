"""A trial of a recorded run: its figures and costs by round."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from protofl.errors import UsageError, unknown
from protofl.records.layout import architectures_in
from protofl.records.row import Row
from protofl.system.files.tables import flat
from protofl.system.machine import recorded_facts
from protofl_workbench.comparing.run_figures import COSTS, FIGURES, figure_named
from protofl_workbench.recorded.recorded_run import Run

Floats = npt.NDArray[np.float64]

PairKey: TypeAlias = "tuple[int, str]"
"""Seed, and hash of the split."""


@dataclass(frozen=True)
class Trial:
    """A trial of a run.

    Attributes:
        run: The run.
        number: Number of the trial in the run.
        rounds: Number of rounds that count; None for all.
    """

    run: Run
    number: int
    rounds: int | None = None

    @property
    def seed(self) -> int:
        """Seed of the run of one trial that would be the same."""
        return int(self.run.config["seed"]) + self.number

    @cached_property
    def rows(self) -> list[Row]:
        """Lines of the record, by rounds."""
        rows = self.run.rows_of(self.number)
        return rows if self.rounds is None else [r for r in rows if r.round < self.rounds]

    @cached_property
    def evaluated(self) -> int:
        """Number of rounds that were evaluated."""
        return sum(row.test_accuracy is not None for row in self.rows)

    @property
    def name(self) -> str:
        """Folder of the run, and the number of the trial if there are several."""
        several = int(self.run.config["trials"]) > 1
        return f"{self.run.folder}, trial {self.number}" if several else str(self.run.folder)

    @property
    def diverged(self) -> int | None:
        """First round, from 0, after which the loss is never finite; None if it is at the end."""
        result = None
        for row in reversed(self.rows):
            if not FIGURES["loss"].is_lost(row):
                break
            result = row.round
        return result

    def never_finite(self, name: str) -> bool:
        """Return True if a figure is a loss that is finite in no round."""
        return all(map(figure_named(name).is_lost, self.rows))

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return a figure in the rounds that have it: positions in `rows`, and values.

        Args:
            name: A name of `FIGURES`, or a name in the record.

        Raises:
            UsageError: No line has the figure.
        """
        each = self.each(figure_named(name).read)
        points = [(n, float(value)) for n, value in enumerate(each) if value is not None]
        if not points:
            raise _no_figure(self, name)
        places, values = zip(*points, strict=True)
        return np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)

    def each(self, read: Callable[[Row], Any]) -> list[Any]:
        """Read a value from each line."""
        return [read(row) for row in self.rows]

    def has(self, name: str) -> bool:
        """Return True if any line has a figure."""
        return any(value is not None for value in self.each(figure_named(name).read))

    def records(self, cost: str) -> bool:
        """Return True if every line has a cost."""
        return None not in self.each(COSTS[cost].of)

    def spent(self, name: str) -> Floats:
        """Return the cost of all rounds up to and including each of `rows`, [rows].

        Args:
            name: A name of `COSTS`.

        Raises:
            UsageError: The cost is unknown or not recorded.
        """
        if name not in COSTS:
            raise unknown("cost", name, COSTS)
        cost, each = COSTS[name], self.each(COSTS[name].of)
        if None in each:
            raise UsageError(
                f"{self.name} has no {name}: line of round {self.rows[each.index(None)].round + 1}",
                do=f"record it with {cost.option}",
            )
        total: Floats = np.cumsum(np.array(each, dtype=np.float64))
        return total

    def guess(self, figure: str) -> float:
        """Return the majority guess of ``accuracy`` or ``balanced-accuracy``; NaN if not known."""
        if figure == "accuracy":
            return self.run.majority(self.number)
        split = self.run.split(self.number)
        return balanced_guess(split.train_counts, split.test_counts)

    @property
    def machine(self) -> tuple[str, ...]:
        """Everything recorded that the seconds of the trial depend on."""
        config = self.run.config
        options = [config.get(name) for name in
                   ("device", "engine", "backend", "workers", "server_threads")]  # fmt: skip
        known = recorded_facts(config)
        facts = [known.get(name) for name in ("torch", "instruction set", "processor")]
        return tuple(map(str, [*options, *facts]))


def trials_of(run: Run) -> list[Trial]:
    """Return the trials of a run that have rounds."""
    return [Trial(run, number) for number in run.trials]


def _no_figure(trial: Trial, name: str) -> UsageError:
    """Return the error for a figure that a record does not have, with similar names."""
    if not trial.rows:
        return UsageError(f"{trial.name} has no round yet", do="wait for its first round")
    if trial.never_finite(name):
        return UsageError(
            f"{name} of {trial.name} was never finite", "the run diverged", "lower --lr"
        )
    known = dict.fromkeys([figure for figure in FIGURES if trial.has(figure)])
    last = [pair for row in trial.rows[-3:] for pair in flat(row).items()]
    known |= dict.fromkeys(name for name, value in last if type(value) in (int, float))
    similar = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    few = [n for n in known if not n.startswith("client_accuracies.")][:24]
    near = f"did you mean {' or '.join(similar)}?" if similar else f"it has: {', '.join(few)}"
    flags = {"metrics": "--metrics", "measures": "--measure"}
    flag = flags.get(str(figure_named(name).source).partition(".")[0])
    do = f"record it with {flag}" if flag else ""
    return UsageError(f"the record of {trial.name} has no figure {name!r}", near, do)


def pair_key(trial: Trial) -> PairKey:
    """Return the seed and the hash of the split, which both trials of a pair have."""
    return trial.seed, trial.run.split(trial.number).hash


def accuracies_by_architecture(run: Run) -> dict[str, list[float]]:
    """Return the mean accuracy of each architecture's clients in the last evaluation, by trial.

    Empty for a run with one architecture, and above 1,000 clients.
    """
    names, result = architectures_in(run.config), dict[str, list[float]]()
    for accuracies in run.accuracies.values() if len({*names}) > 1 else ():
        for name in dict.fromkeys(names):
            of_architecture = [a for c, a in accuracies.items() if names[c % len(names)] == name]
            if of_architecture:
                result.setdefault(name, []).append(sum(of_architecture) / len(of_architecture))
    return result


def balanced_guess(
    train_counts: npt.NDArray[np.int64], test_counts: npt.NDArray[np.int64]
) -> float:
    """Return the balanced accuracy of guessing each client's commonest training class.

    Args:
        train_counts: Training samples [M, C] of each client and class.
        test_counts: Test samples [M, C].

    Returns:
        The mean recall over the classes with test samples; NaN if no client has training samples.
    """
    trained = train_counts.any(1)
    if not trained.any():
        return math.nan
    guess, tests = train_counts[trained].argmax(1), test_counts[trained]
    right = np.bincount(guess, tests[np.arange(len(tests)), guess], tests.shape[1])
    there = tests.any(0)
    return float((right[there] / tests.sum(0)[there]).mean())

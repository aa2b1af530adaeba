"""The record of a group of trials: means over trials, by round and at the end."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from protofl.errors import UsageError
from protofl.records.result import summarise
from protofl.records.row import Row
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.trial_figures import accuracies_by_rank, trial_figure
from protofl_workbench.comparing.trials import Trial
from protofl_workbench.recorded.recorded_run import Run
from protofl_workbench.recorded.recorded_split import RecordedSplit


@dataclass(frozen=True)
class Moments:
    """Mean and population standard deviation over trials; the deviation is None for one trial."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments | None:
        """Return the moments of values; None if there are none."""
        if not values:
            return None
        several = len(values) > 1
        return cls(statistics.fmean(values), statistics.pstdev(values) if several else None)


class GroupRecord:
    """The record of trials that differ only in their seeds.

    Attributes:
        group: The trials and their label.
        run: The run of the first trial.
        config: Configuration of this run.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.run = group.runs[0]
        self.config = self.run.config

    @cached_property
    def rows(self) -> list[Row]:
        """Lines of all trials, trial by trial."""
        return [row for trial in self.group.trials for row in trial.rows]

    @cached_property
    def complete(self) -> list[Trial]:
        """The trials that are as long as the longest; means are over these."""
        return self.group.complete

    @cached_property
    def split(self) -> RecordedSplit | None:
        """Split of the first trial; None if it is not recorded yet."""
        try:
            return self.run.split(self.group.trials[0].number)
        except UsageError:
            return None

    @cached_property
    def ends(self) -> list[Mapping[str, Any]]:
        """Summaries of the complete trials; for unfinished trials those of the rounds so far."""
        summaries = {id(run): _summary(run) for run in self.group.runs}
        trial_ends = [summaries[id(trial.run)].get(trial.number) for trial in self.complete]
        return [end for end in trial_ends if end is not None]

    def end(self, key: str) -> Moments | None:
        """Return a figure of the summaries; None if a trial lacks it or it is NaN."""
        values = [end.get(key) for end in self.ends]
        moments = (
            None if None in values else Moments.of([float(v) for v in values if v is not None])
        )
        return moments if moments is not None and moments.mean == moments.mean else None

    def figure(self, name: str) -> Moments | None:
        """Return a figure as `protofl.compare` has it: within each trial, then over trials.

        Args:
            name: A figure such as ``worst`` or ``macro-f1@best``.
        """
        chosen = trial_figure(name)
        if not all(trial.has(chosen.figure) for trial in self.complete):
            return None
        return Moments.of([chosen.of(trial) for trial in self.complete])

    def by_round(self, read: Callable[[Row], float | None]) -> dict[int, Moments]:
        """Return {round: a figure over the complete trials that have it}.

        Args:
            read: Reads the figure of a line; None for none.
        """
        values_by_round: dict[int, list[float]] = {}
        for row in (row for trial in self.complete for row in trial.rows):
            value = read(row)
            if value is not None:
                values_by_round.setdefault(row.round, []).append(value)
        return {
            round: m
            for round in sorted(values_by_round)
            if (m := Moments.of(values_by_round[round]))
        }

    def total(self, read: Callable[[Row], float]) -> Moments:
        """Return the sum of a figure over the rounds of each trial, over trials."""
        result = Moments.of([sum(map(read, trial.rows)) for trial in self.complete])
        assert result is not None, "a group has trials"
        return result

    def mean(self, read: Callable[[Row], float]) -> float:
        """Return the mean of a figure over all rounds of all trials."""
        return statistics.fmean(map(read, self.rows))

    @cached_property
    def ranks(self) -> list[Moments]:
        """Accuracy by rank of the clients in each trial, the worst first; empty if not recorded."""
        scored = [trial for trial in self.complete if any(r.client_accuracies for r in trial.rows)]
        each = accuracies_by_rank(scored).T.tolist() if scored else []
        return [m for values in each if (m := Moments.of(values))]

    @cached_property
    def clients(self) -> dict[int, Moments]:
        """{client: final accuracy over trials}; empty if splits differ or it is not recorded."""
        if len({_split_hash(trial) for trial in self.complete}) > 1:
            return {}
        accuracies: dict[int, list[float]] = {}
        for trial in self.complete:
            for client, accuracy in trial.run.accuracies.get(trial.number, {}).items():
                accuracies.setdefault(client, []).append(accuracy)
        return {client: m for client in sorted(accuracies) if (m := Moments.of(accuracies[client]))}

    @cached_property
    def absent(self) -> Counter[str]:
        """{reason: number of times that a client was absent}."""
        return Counter(reason for row in self.rows for reason in row.absent.values())

    @cached_property
    def stages(self) -> dict[str, float]:
        """{stage: seconds per round}, the longest first, without those that took none."""
        names = dict.fromkeys(s for row in self.rows for s in row.seconds if s != "total")
        means = {s: statistics.fmean(r.seconds.get(s, 0.0) for r in self.rows) for s in names}
        long_stages = {stage: mean for stage, mean in means.items() if mean >= 5e-4}
        return dict(sorted(long_stages.items(), key=lambda item: -item[1]))

    @property
    def terms(self) -> list[str]:
        """The loss terms, in the order of the last round."""
        return list(dict.fromkeys(t for row in self.rows[::-1] for t in row.loss_terms))


def _split_hash(trial: Trial) -> str:
    try:
        return trial.run.split(trial.number).hash
    except UsageError:  # not recorded
        return ""


def _summary(run: Run) -> dict[int, Mapping[str, Any]]:
    """Return {trial: its summary}."""
    if run.summary is not None:
        return {trial["trial"]: trial for trial in run.summary["trials"]}
    scored = {row.trial for row in run.rows if row.test_accuracy is not None}
    rows = [row for row in run.rows if row.trial in scored]
    if not rows:
        return {}
    summary = summarise(rows, lambda trial, *_: _majority(run, trial), {})
    return {trial["trial"]: trial for trial in summary["trials"]}


def _majority(run: Run, trial: int) -> float:
    """Return the accuracy of guessing each client's commonest training class; NaN if unknown."""
    try:
        split = run.split(trial)
    except UsageError:
        return float("nan")
    pairs = zip(split.train_counts, split.test_counts, strict=True)
    hits = sum(int(test[train.argmax()]) for train, test in pairs)
    return hits / max(1, int(split.test_counts.sum()))

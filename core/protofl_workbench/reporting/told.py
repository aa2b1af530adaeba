"""What the record of some trials comes to: means over them, round by round and at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from protofl.errors import UsageError
from protofl.records.folder.result import summarise
from protofl.records.folder.row import Row
from protofl.records.recorded.split import RecordedSplit
from protofl.runs.reuse.run import Run
from protofl_workbench.comparing.run_groups import Group
from protofl_workbench.comparing.trials import Trial


@dataclass(frozen=True)
class Moments:
    """Mean and (population) deviation over trials; the latter None of a single one."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments | None:
        """Those of some values; None of none."""
        if not values:
            return None
        several = len(values) > 1
        return cls(statistics.fmean(values), statistics.pstdev(values) if several else None)


class Told:
    """Trials that differ in nothing but seeds, as the page tells of them.

    Attributes:
        group: The trials, with what they are called.
        run: The first run of which they are.
        config: What it was told to do.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.run = group.runs[0]
        self.config = self.run.config

    @cached_property
    def rows(self) -> list[Row]:
        """Their lines, trial by trial."""
        return [row for trial in self.group.trials for row in trial.rows]

    @cached_property
    def whole(self) -> list[Trial]:
        """The trials that have come as far as the longest: a mean is over these."""
        last = {id(t): max((row.round for row in t.rows), default=-1) for t in self.group.trials}
        return [trial for trial in self.group.trials if last[id(trial)] == max(last.values())]

    @cached_property
    def split(self) -> RecordedSplit | None:
        """The first trial's split; None where the run has not come so far."""
        try:
            return self.run.split(self.group.trials[0].number)
        except UsageError:
            return None

    @cached_property
    def ends(self) -> list[Mapping[str, Any]]:
        """What summaries say of the trials; of an unfinished one that of its rounds so far."""
        said = {id(run): _summary(run) for run in self.group.runs}
        found = [said[id(trial.run)].get(trial.number) for trial in self.whole]
        return [end for end in found if end is not None]

    def end(self, key: str) -> Moments | None:
        """A figure of the summaries over the trials; None where one lacks it."""
        values = [end.get(key) for end in self.ends]
        return None if None in values else Moments.of([float(v) for v in values if v is not None])

    def by_round(self, read: Callable[[Row], float | None]) -> dict[int, Moments]:
        """{round: a figure over the trials that have it, of those that have come furthest}.

        Args:
            read: Reads it in a line; None where there is none.
        """
        found: dict[int, list[float]] = {}
        for row in (row for trial in self.whole for row in trial.rows):
            value = read(row)
            if value is not None:
                found.setdefault(row.round, []).append(value)
        return {round: m for round in sorted(found) if (m := Moments.of(found[round]))}

    def total(self, read: Callable[[Row], float]) -> Moments | None:
        """The sum of a figure over a trial's rounds, over trials."""
        return Moments.of([sum(map(read, trial.rows)) for trial in self.whole])

    def mean(self, read: Callable[[Row], float]) -> float:
        """The mean of a figure over all rounds."""
        return statistics.fmean(map(read, self.rows))

    @property
    def evaluated(self) -> bool:
        """Whether any round was."""
        return any(row.test_accuracy is not None for row in self.rows)

    @cached_property
    def clients(self) -> dict[int, Moments]:
        """{client: accuracy at the last evaluation over trials}; empty of more than 1,000."""
        found: dict[int, list[float]] = {}
        for trial in self.whole:
            for client, accuracy in trial.run.accuracies.get(trial.number, {}).items():
                found.setdefault(client, []).append(accuracy)
        return {client: m for client in sorted(found) if (m := Moments.of(found[client]))}

    @cached_property
    def absent(self) -> dict[str, int]:
        """{reason: how often a client was absent for it}."""
        found: dict[str, int] = {}
        for row in self.rows:
            for reason in row.absent.values():
                found[reason] = found.get(reason, 0) + 1
        return found

    @cached_property
    def stages(self) -> dict[str, float]:
        """{stage: seconds a round}, the longest first, without those that took none."""
        names = dict.fromkeys(s for row in self.rows for s in row.seconds if s != "total")
        means = {s: statistics.fmean(r.seconds.get(s, 0.0) for r in self.rows) for s in names}
        found = {stage: mean for stage, mean in means.items() if mean >= 5e-4}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def terms(self) -> list[str]:
        """The terms of its loss, as the last round has them first."""
        return list(dict.fromkeys(t for row in self.rows[::-1] for t in row.loss_terms))


def _summary(run: Run) -> dict[int, Mapping[str, Any]]:
    """{trial: what its summary says}."""
    if run.summary is not None:
        return {trial["trial"]: trial for trial in run.summary["trials"]}
    told = {row.trial for row in run.rows if row.test_accuracy is not None}
    rows = [row for row in run.rows if row.trial in told]
    found = summarise(rows, lambda trial, *_: majority(run, trial), {}) if rows else {"trials": []}
    return {trial["trial"]: trial for trial in found["trials"]}


def majority(run: Run, trial: int) -> float:
    """The accuracy of always guessing a client's commonest training class; NaN where unknown."""
    try:
        split = run.split(trial)
    except UsageError:
        return float("nan")
    hits = sum(
        int(test[train.argmax()])
        for train, test in zip(split.train_counts, split.test_counts, strict=True)
    )
    return hits / max(1, int(split.test_counts.sum()))


def own(value: Any) -> str:  # noqa: ANN401 - options are of many types
    """A value of an option as users write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(own, value)) or "none"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={own(one)}" for key, one in value.items()) or "none"
    return str(value)

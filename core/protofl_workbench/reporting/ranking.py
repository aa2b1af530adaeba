"""The group that is ahead at the end, if the groups can be ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from protofl.errors import UsageError
from protofl_workbench.comparing.run_groups import progress
from protofl_workbench.comparing.trials import PairKey, Trial, pair_key
from protofl_workbench.reporting.group_record import GroupRecord


@dataclass(frozen=True)
class Ranking:
    """The order of groups at the end, or what differs between them.

    Attributes:
        order: The ranked groups with the trials that all of them have, the best first; empty if
            they cannot be ranked.
        apart: What differs: ``models``, ``rounds``, ``seeds`` or ``splits``.
        details: The values that differ, with the names of their groups.
        left_out: {group: reason} of groups that are not finished.
        seeds: The seeds of the ranked trials, if not all trials of the groups are ranked.
    """

    order: tuple[GroupRecord, ...] = ()
    apart: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    seeds: tuple[int, ...] = ()

    @property
    def best(self) -> list[str]:
        """The names of the best groups: one, or several with the same accuracy."""
        top = [final_accuracy(record) for record in self.order[:1]]
        return [record.group.label for record in self.order if final_accuracy(record) in top]


def final_accuracy(record: GroupRecord) -> float:
    """Return the final accuracy of a group; −1 for none."""
    accuracy = record.end("final_test_accuracy")
    return accuracy.mean if accuracy is not None else -math.inf


def ranking(records: Sequence[GroupRecord]) -> Ranking:
    """Rank the finished groups if they have the same split, models and rounds.

    Trials count if all groups have a trial with the same seed and split.

    Args:
        records: Groups on the same data.
    """
    unfinished = {record.group.label: _unfinished(record) for record in records}
    left_out = tuple((label, why) for label, why in unfinished.items() if why)
    finished = [record for record in records if not unfinished[record.group.label]]
    apart: list[str] = []
    details: list[str] = []
    values: dict[str, Callable[[GroupRecord], str]] = {
        "models": lambda record: _values(record, "models"),
        "rounds": lambda record: _values(record, "rounds"),
    }
    for name, of in values.items():
        if len({of(record) for record in finished}) > 1:
            apart.append(name)
            details.append(_by_group(name, finished, of))
    keys = [{_key(t) for t in record.group.trials} for record in finished]
    common = set.intersection(*keys) if keys else set()
    if finished and not common:
        seeds = [{seed for seed, _ in trial_keys} for trial_keys in keys]
        same = bool(set.intersection(*seeds))
        apart.append("splits" if same else "seeds")
        if not same:
            details.append(_by_group("seeds", finished, _seeds))
    if apart or len(finished) < 2:
        return Ranking((), tuple(apart), tuple(details), left_out)
    ranked = []
    for record in finished:
        trials = tuple(t for t in record.group.trials if _key(t) in common)
        ranked.append(GroupRecord(replace(record.group, trials=trials)))
    every = all(trial_keys == common for trial_keys in keys)
    return Ranking(
        tuple(sorted(ranked, key=final_accuracy, reverse=True)),
        left_out=left_out,
        seeds=() if every else tuple(sorted(seed for seed, _ in common)),
    )


def _key(trial: Trial) -> PairKey:
    """Return seed and split; an empty hash if the split is not recorded."""
    try:
        return pair_key(trial)
    except UsageError:
        return trial.seed, ""


def _unfinished(record: GroupRecord) -> str:
    """Return how far an unfinished group is; empty if all its runs are finished."""
    states = [*filter(None, map(progress, record.group.runs))]
    return "; ".join(states) or ("" if record.ends else "not evaluated")


def _values(record: GroupRecord, option: str) -> str:
    """Return the values of an option in the runs of a group."""
    return " and ".join(dict.fromkeys(str(run.config[option]) for run in record.group.runs))


def _seeds(record: GroupRecord) -> str:
    return ", ".join(str(seed) for seed in sorted(trial.seed for trial in record.group.trials))


def _by_group(name: str, records: Sequence[GroupRecord], of: Callable[[GroupRecord], str]) -> str:
    """Return ``models: cnn4 (fedproto, local), htfe8 (fedtgp)``."""
    groups: dict[str, list[str]] = {}
    for record in records:
        groups.setdefault(of(record), []).append(record.group.label)
    each = [f"{value} ({', '.join(labels[:3])}{', …' * (len(labels) > 3)})"
            for value, labels in groups.items()]  # fmt: skip
    return f"{name}: {', '.join(each[:4])}{', …' * (len(each) > 4)}"

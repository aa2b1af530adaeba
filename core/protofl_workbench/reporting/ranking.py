"""The group that is ahead at the end, if the groups can be ranked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protofl.errors import UsageError
from protofl_workbench.comparing.run_groups import Group, progress
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
        top = [final_accuracy(own) for own in self.order[:1]]
        return [own.group.label for own in self.order if final_accuracy(own) in top]


def final_accuracy(own: GroupRecord) -> float:
    """Return the final accuracy of a group; −1 for none."""
    found = own.end("final_test_accuracy")
    return found.mean if found is not None else -1.0


def ranking(records: Sequence[GroupRecord]) -> Ranking:
    """Rank the finished groups if they have the same split, models and rounds.

    Trials count if all groups have a trial with the same seed and split.

    Args:
        records: Groups on the same data.
    """
    unfinished = {own.group.label: _unfinished(own) for own in records}
    left_out = tuple((label, why) for label, why in unfinished.items() if why)
    finished = [own for own in records if not unfinished[own.group.label]]
    apart: list[str] = []
    details: list[str] = []
    values: dict[str, Callable[[GroupRecord], str]] = {
        "models": lambda own: _values(own, "models"),
        "rounds": lambda own: _values(own, "rounds"),
    }
    for name, of in values.items():
        if len({of(own) for own in finished}) > 1:
            apart.append(name)
            details.append(_by_group(name, finished, of))
    keys = [{_key(t) for t in own.group.trials} for own in finished]
    common = set.intersection(*keys) if keys else set()
    if finished and not common:
        seeds = [{seed for seed, _ in own} for own in keys]
        same = bool(set.intersection(*seeds))
        apart.append("splits" if same else "seeds")
        if not same:
            details.append(_by_group("seeds", finished, _seeds))
    if apart or len(finished) < 2:
        return Ranking((), tuple(apart), tuple(details), left_out)
    ranked = []
    for own in finished:
        trials = tuple(t for t in own.group.trials if _key(t) in common)
        ranked.append(GroupRecord(Group(own.group.label, trials)))
    every = all(own == common for own in keys)
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


def _unfinished(own: GroupRecord) -> str:
    """Return how far an unfinished group is; empty if all its runs are finished."""
    states = [*filter(None, map(progress, own.group.runs))]
    return "; ".join(states) or ("" if own.ends else "not evaluated")


def _values(own: GroupRecord, option: str) -> str:
    """Return the values of an option in the runs of a group."""
    return " and ".join(dict.fromkeys(str(run.config[option]) for run in own.group.runs))


def _seeds(own: GroupRecord) -> str:
    return ", ".join(str(seed) for seed in sorted(trial.seed for trial in own.group.trials))


def _by_group(name: str, records: Sequence[GroupRecord], of: Callable[[GroupRecord], str]) -> str:
    """Return ``models: cnn4 (fedproto, local), htfe8 (fedtgp)``."""
    groups: dict[str, list[str]] = {}
    for own in records:
        groups.setdefault(of(own), []).append(own.group.label)
    each = [f"{value} ({', '.join(labels[:3])}{', …' * (len(labels) > 3)})"
            for value, labels in groups.items()]  # fmt: skip
    return f"{name}: {', '.join(each[:4])}{', …' * (len(each) > 4)}"

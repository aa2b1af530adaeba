"""Trials that can be compared: on the same data, with the same seed and split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from protofl.errors import UsageError
from protofl.records.layout import CONFIG
from protofl_workbench.comparing.run_groups import (
    Group,
    Runs,
    asked_rounds,
    grouped,
    runs_by_label,
)
from protofl_workbench.comparing.run_labels import (
    data_key,
    data_options,
    method_options,
    option_text,
    titles_of,
)
from protofl_workbench.comparing.trials import PairKey, Trial, pair_key
from protofl_workbench.recorded.recorded_run import Run


@dataclass(frozen=True)
class Setting:
    """Groups on the same data.

    Attributes:
        title: Title of the data.
        groups: The groups, with one trial for each seed and split.
    """

    title: str
    groups: tuple[Group, ...]


def settings_of(
    runs: Runs,
    by: str | Sequence[str],
    rounds: int | None,
    notes: list[str],
) -> list[Setting]:
    """Return the settings of runs, with the groups of each.

    Args:
        runs: The runs.
        by: Options to group by.
        rounds: Number of rounds of each trial that count.
        notes: Takes a line for each trial that is left out.

    Raises:
        UsageError: No setting has two groups, no group has a finished trial, or trials of one seed
            have different splits.
    """
    runs_by_data: dict[str, dict[str, list[Run]]] = {}
    for label, label_runs in runs_by_label(runs, notes).items():
        for run in label_runs:
            runs_by_data.setdefault(data_key(run), {}).setdefault(label, []).append(run)
    firsts = [next(iter(labelled.values()))[0] for labelled in runs_by_data.values()]
    settings, errors = [], []
    for title, labelled in zip(titles_of(firsts), runs_by_data.values(), strict=True):
        groups = grouped(labelled.get("", labelled), by, settings=False)
        try:
            finished = finished_trials(groups, rounds, notes)
        except UsageError as error:
            errors.append(error)
            notes.append(f"{title}: {error.what}")
            continue
        together = tuple(_one_per_pair(group, notes) for group in finished)
        _check_splits(together)
        settings.append(Setting(title, together))
    if not settings:
        raise errors[0]
    if len(runs_by_data) > 1 and not any(len(setting.groups) > 1 for setting in settings):
        raise _different_data(firsts[0], firsts[1])
    if len(settings) > 1:
        notes += [
            f"{s.title}: nothing to compare {s.groups[0].label} with"
            for s in settings
            if len(s.groups) == 1
        ]
    return settings


def paired_trials(ours: Group, theirs: Group) -> list[tuple[Trial, Trial]]:
    """Return the pairs of trials with the same seed and split, by seeds.

    Args:
        ours: The first group.
        theirs: The second group.

    Raises:
        UsageError: There is no pair.
    """
    other = {pair_key(trial): trial for trial in theirs.trials}
    pairs = [(t, other[key]) for t in ours.trials if (key := pair_key(t)) in other]
    if not pairs:
        seeds = [
            f"{g.label} has {', '.join(map(str, sorted(t.seed for t in g.trials)))}"
            for g in (ours, theirs)
        ]
        what = f"{ours.label} and {theirs.label} have no seed in common"
        raise UsageError(what, "; ".join(seeds), "compare runs with the same seeds")
    return sorted(pairs, key=lambda pair: pair[0].seed)


def finished_trials(groups: Iterable[Group], rounds: int | None, notes: list[str]) -> list[Group]:
    """Leave out trials that do not have all their rounds, or a given number of rounds.

    Args:
        groups: The groups.
        rounds: Number of rounds that count; None for all rounds of a run.
        notes: Takes a line for each trial or group that is left out.

    Raises:
        UsageError: Fewer than two of several groups have a finished trial.
    """
    kept: list[Group] = []
    empty: dict[str, int] = {}
    least = []
    for group in groups:
        cut = [replace(trial, rounds=rounds) for trial in group.trials]
        short = [trial for trial in cut if len(trial.rows) < asked_rounds(trial)]
        longest = max((len(trial.run.rows_of(trial.number)) for trial in cut), default=0)
        least.append(longest)
        notes += [
            f"skipping {trial.name}: it has {len(trial.rows)} of {asked_rounds(trial)} rounds"
            for trial in short
        ]
        if finished := tuple(trial for trial in cut if trial not in short):
            kept.append(replace(group, trials=finished))
        else:
            empty[group.label] = longest
    if empty and len(kept) < 2:
        label, number = next(iter(empty)), min(least)
        raise UsageError(
            f"{label} has no trial with {f'{rounds} rounds' if rounds else 'all rounds'}",
            f"its longest trial has {empty[label]}",
            f"--rounds {number} reads this many rounds of each trial"
            if number
            else "leave the run out",
        )
    notes += [f"skipping {label}: it has no finished round" for label, n in empty.items() if not n]
    lengths = {group.label: max(len(t.rows) for t in group.trials) for group in kept}
    if len({*lengths.values()}) > 1:
        each = ", ".join(f"{label} {count}" for label, count in lengths.items())
        notes.append(
            f"the numbers of rounds differ ({each}): --rounds {min(lengths.values())} reads this "
            "many of each"
        )
    return kept


def _one_per_pair(group: Group, notes: list[str]) -> Group:
    """Keep one trial for each seed and split: the one with the most evaluated rounds.

    Raises:
        UsageError: Two trials of one seed and split have different options.
    """
    kept: dict[PairKey, Trial] = {}
    for trial in sorted(group.trials, key=lambda trial: -trial.evaluated):
        before = kept.setdefault(pair_key(trial), trial)
        if before is trial:
            continue
        if apart := _differing(method_options(before.run), method_options(trial.run)):
            raise UsageError(
                f"{before.name} and {trial.name} are both seed {trial.seed} of {group.label}",
                f"they differ in {', '.join(apart)}",
                "group by these options too, or give one of the runs",
            )
        notes.append(f"skipping {trial.name}: same seed and split as {before.name}")
    return replace(group, trials=tuple(kept[key] for key in sorted(kept)))


def _differing(one: dict[str, object], other: dict[str, object]) -> list[str]:
    return [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]


def _check_splits(groups: Sequence[Group]) -> None:
    """Raise a `UsageError` if trials of one seed have different splits."""
    seen: dict[int, Trial] = {}
    for trial in (trial for group in groups for trial in group.trials):
        before = seen.setdefault(trial.seed, trial)
        if pair_key(before) != pair_key(trial):
            one, other = (t.run.split(t.number) for t in (before, trial))
            raise UsageError(
                f"{one.file} and {other.file} have different splits for seed {trial.seed}",
                f"the hashes are {one.hash[:12]}… and {other.hash[:12]}…",
                "compare runs on the same split",
            )


def _different_data(one: Run, other: Run) -> UsageError:
    apart = _differing(data_options(one), data_options(other))
    values = [f"{option_text(one, key)} and {option_text(other, key)}" for key in apart]
    return UsageError(
        f"{one.folder / CONFIG} and {other.folder / CONFIG} cannot be compared: they differ in "
        f"{', '.join(apart)}",
        "; ".join(values),
        "compare runs on the same data",
    )

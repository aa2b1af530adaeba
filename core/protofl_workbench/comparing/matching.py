"""Which trials can be held against each other: on the same data, with the same seed and split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from protofl.errors import UsageError
from protofl.records.folder.reading import CONFIG
from protofl.runs.reuse.run import Run
from protofl_workbench.comparing.groups import Group, Runs, grouped, opened
from protofl_workbench.comparing.naming import said, titles_of
from protofl_workbench.comparing.options import place, setting, treatment
from protofl_workbench.comparing.trials import Trial

Key: TypeAlias = "tuple[int, str]"
"""Seed and hash of the split."""


@dataclass(frozen=True)
class Block:
    """Groups on the same data.

    Attributes:
        title: On which.
        groups: They; of each one trial for a key.
    """

    title: str
    groups: tuple[Group, ...]


def blocks(
    runs: Runs, by: str | Sequence[str], rounds: int | None, notes: list[str]
) -> list[Block]:
    """Runs by the data on which they are, and there by groups.

    Args:
        runs: The runs.
        by: Options by which they are grouped.
        rounds: So many rounds of each trial count.
        notes: What is said of trials that are left out is added here.

    Raises:
        UsageError: There are several settings, and in none of them two groups; or two splits of one
            seed are others; or no setting has two groups with a finished trial.
    """
    found: dict[str, dict[str, list[Run]]] = {}
    for label, own in opened(runs).items():
        for run in own:
            found.setdefault(place(run), {}).setdefault(label, []).append(run)
    firsts = [next(iter(labelled.values()))[0] for labelled in found.values()]
    made, lost = [], []
    for title, labelled in zip(titles_of(firsts), found.values(), strict=True):
        groups = grouped(labelled.get("", labelled), by, settings=False)
        try:
            whole = finished(groups, rounds, notes)
        except UsageError as problem:
            lost.append(problem)
            notes.append(f"{title}: {problem.what}")
            continue
        together = tuple(_once(group, notes) for group in whole)
        _check_splits(together)
        made.append(Block(title, together))
    if not made:
        raise lost[0]
    if len(found) > 1 and not any(len(block.groups) > 1 for block in made):
        raise _others(*firsts[:2])
    alone = [block for block in made if len(block.groups) == 1]
    if len(made) > 1:
        notes += [f"{b.title}: there is nothing to compare {b.groups[0].label} with" for b in alone]
    return made


def key_of(trial: Trial) -> Key:
    """What trials have in common that are a pair."""
    return trial.seed, trial.run.split(trial.number).hash


def pairs(ours: Group, theirs: Group) -> list[tuple[Trial, Trial]]:
    """The trials of two groups with the same seed and split, by seeds.

    Raises:
        UsageError: There is none.
    """
    other = {key_of(trial): trial for trial in theirs.trials}
    found = [(t, other[key]) for t in ours.trials if (key := key_of(t)) in other]
    if not found:
        seeds = [
            ", ".join(str(s) for s in sorted(t.seed for t in g.trials)) for g in (ours, theirs)
        ]
        raise UsageError(
            f"{ours.label} and {theirs.label} have no seed in common",
            f"{ours.label} has {seeds[0]}; {theirs.label} has {seeds[1]}",
            "--unpaired compares them nevertheless",
        )
    return sorted(found, key=lambda pair: pair[0].seed)


def finished(groups: Iterable[Group], rounds: int | None, notes: list[str]) -> list[Group]:
    """Groups of the trials that have all their rounds, or at least a number of them.

    Args:
        groups: Groups.
        rounds: So many rounds of each count; all that were asked for where None.
        notes: What is left out is told here.

    Raises:
        UsageError: No group has such a trial, or a single one of several.
    """
    made: list[Group] = []
    most: dict[str, int] = {}
    for group in groups:
        cut = [replace(trial, rounds=rounds) for trial in group.trials]
        whole = [trial for trial in cut if len(trial.rows) >= _asked(trial)]
        most[group.label] = max((len(t.run.rows_of(t.number)) for t in cut), default=0)
        notes += [
            f"{trial.name} is left out: it has {len(trial.rows)} of {_asked(trial)} rounds"
            for trial in cut
            if trial not in whole
        ]
        made.append(Group(group.label, tuple(whole)))
    lacking = [group.label for group in made if not group.trials]
    made = [group for group in made if group.trials]
    if lacking and len(made) < 2:
        label, all_ = lacking[0], min(most.values())
        wanted = f"{rounds} rounds" if rounds else "all the rounds that it was to have"
        raise UsageError(
            f"{label} has no trial with {wanted}",
            f"its longest has {most[label]}",
            f"--rounds {all_} reads every trial up to there" if all_ else "leave it out",
        )
    notes += [f"{n} is left out: it has no finished round" for n in lacking if not most[n]]
    lengths = {group.label: max(len(t.rows) for t in group.trials) for group in made}
    if len({*lengths.values()}) > 1:
        said = ", ".join(f"{label} {count}" for label, count in lengths.items())
        notes.append(
            f"rounds differ ({said}): --rounds {min(lengths.values())} reads as many of each"
        )
    return made


def _asked(trial: Trial) -> int:
    """How many rounds a trial has to have."""
    return trial.rounds or int(trial.run.config["rounds"])


def _once(group: Group, notes: list[str]) -> Group:
    """A group with a trial of each seed and split, by seeds; others like it are told.

    Of two it is the one with more evaluated rounds.

    Raises:
        UsageError: One that is not like it has them too.
    """
    kept: dict[Key, Trial] = {}
    for trial in sorted(group.trials, key=lambda trial: -trial.evaluated):
        before = kept.setdefault(key_of(trial), trial)
        if before is trial:
            continue
        one, other = treatment(before.run), treatment(trial.run)
        apart = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        if apart:
            raise UsageError(
                f"{before.name} and {trial.name} are both seed {trial.seed} of {group.label}",
                f"they differ in {', '.join(apart)}",
                "group by that too, or give one of them",
            )
        notes.append(f"{trial.name} is left out: it has the seed and split of {before.name}")
    return Group(group.label, tuple(kept[key] for key in sorted(kept)))


def _check_splits(groups: Sequence[Group]) -> None:
    """Raise a `UsageError` where trials of one seed, on the same data, have other splits."""
    seen: dict[int, Trial] = {}
    for trial in (trial for group in groups for trial in group.trials):
        before = seen.setdefault(trial.seed, trial)
        if key_of(before) != key_of(trial):
            files = [t.run.split(t.number).file for t in (before, trial)]
            hashes = [t.run.split(t.number).hash[:12] for t in (before, trial)]
            raise UsageError(
                f"{files[0]} and {files[1]} have other splits of seed {trial.seed}",
                f"their hashes are {hashes[0]}… and {hashes[1]}…",
                "--unpaired compares them nevertheless",
            )


def _others(one: Run, other: Run) -> UsageError:
    """The error for two runs on other data, or with another evaluation."""
    a, b = setting(one), setting(other)
    apart = [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    words = [f"{said(one, key)} and {said(other, key)}" for key in apart]
    return UsageError(
        f"{one.folder / CONFIG} and {other.folder / CONFIG} can't be compared: they differ in "
        f"{', '.join(apart)}",
        "; ".join(words),
        "compare runs on the same data; --unpaired compares these nevertheless",
    )

"""Runs opened, and grouped by the options that differ between them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from protofl.data.task_names import with_score
from protofl.errors import UsageError, unknown
from protofl.records.reading import FINISHED
from protofl.records.record_files import table_of
from protofl.records.result import Result
from protofl.records.run_index import runs_below
from protofl.system.files.checksums import Damaged
from protofl.system.files.home import expand_user
from protofl.system.files.tables import flat
from protofl.system.formatting import count
from protofl.system.options.table import EXTENT
from protofl_workbench.comparing.run_labels import (
    data_key,
    labels_of,
    method_options,
    recorded_options,
)
from protofl_workbench.comparing.trials import Trial, trials_of
from protofl_workbench.recorded.recorded_run import Run, load_run

RunLike: TypeAlias = "Run | Result | str | Path"
Runs: TypeAlias = "RunLike | Iterable[RunLike] | Mapping[str, RunLike | Iterable[RunLike]]"
"""A run, the result of `protofl.run`, a folder of runs; several of them; or a mapping of labels."""

Labels: TypeAlias = "Mapping[str, str] | Sequence[str]"
"""New names of groups: {group: label}, or texts ``GROUP=LABEL``."""


@dataclass(frozen=True)
class Group:
    """Trials that differ only in their seeds.

    Attributes:
        label: Name of the group.
        trials: The trials.
        place: Number of the group's colour, marker and hatch in all figures; None for the
            position among the groups of a figure.
    """

    label: str
    trials: tuple[Trial, ...]
    place: int | None = None

    @property
    def runs(self) -> list[Run]:
        """The runs of the trials, each once."""
        return list({id(trial.run): trial.run for trial in self.trials}.values())

    @property
    def complete(self) -> list[Trial]:
        """The trials that are as long as the longest."""
        last = {id(t): max((row.round for row in t.rows), default=-1) for t in self.trials}
        return [trial for trial in self.trials if last[id(trial)] == max(last.values())]

    @property
    def extent(self) -> tuple[int, int]:
        """The rounds of the longest trials, and the rounds that these were asked for."""
        longest = self.complete
        return max(len(t.rows) for t in longest), max(map(asked_rounds, longest))

    @property
    def state(self) -> str:
        """``2 of 8 rounds`` if no trial is finished; else empty."""
        rounds_done, asked = self.extent
        return f"{rounds_done} of {count(asked, 'round')}" if rounds_done < asked else ""


def with_score_of(text: str, groups: Iterable[Group]) -> str:
    """Return a text about the accuracy of groups, with the name of their score in its place."""
    return with_score(text, (run.config for group in groups for run in group.runs))


def asked_rounds(trial: Trial) -> int:
    """Return the number of rounds that a trial has at its end, of the rounds that count."""
    return trial.run.asked_of(trial.number, trial.rounds)


def runs_by_label(runs: Runs, notes: list[str] | None = None) -> dict[str, list[Run]]:
    """Open runs by their labels; runs without labels are under an empty label.

    Each run is opened once. A folder that is not a run stands for all runs below it.

    Args:
        runs: Runs or their folders, or a mapping of labels to them.
        notes: See `sound_runs`.

    Raises:
        UsageError: A folder has no run, none of them has one, or a run is damaged.
    """
    labelled = runs if isinstance(runs, Mapping) else {"": runs}
    result: dict[str, list[Run]] = {}
    for label, labelled_runs in labelled.items():
        each = (
            [labelled_runs]
            if isinstance(labelled_runs, (Run, Result, str, Path))
            else labelled_runs
        )
        every = sound_runs((run for one in each for run in runs_in(one)), notes)
        # Parts of one folder with fewer trials or rounds are different runs.
        once = {(r.folder.absolute(), *(r.config.get(key) for key in EXTENT)): r for r in every}
        result[str(label)] = list(once.values())
    empty = [label for label, labelled_runs in result.items() if not labelled_runs]
    if empty or not result:
        of = f" of {empty[0]}" if empty and empty[0] else ""
        raise UsageError(f"no runs{of} were given", do="give the folder of at least one run")
    return result


def runs_in(run: RunLike) -> list[Run]:
    """Open a run, or all runs below a folder, or the runs of a sweep.

    Raises:
        UsageError: There is no run.
    """
    if isinstance(run, Run):
        return [run]
    folder = run.folder if isinstance(run, Result) else run
    path = expand_user(folder)
    below = list(runs_below(path)) or _runs_of_sweep(path)
    return [Run.of(path) for path in below] or [load_run(folder)]


def sound_runs(runs: Iterable[Run], notes: list[str] | None = None) -> list[Run]:
    """Return the runs without damaged ones.

    Args:
        runs: The runs.
        notes: Takes a line for each damaged run; None to refuse damaged runs.

    Raises:
        Damaged: A run is damaged, and ``notes`` is None or no other run is left.
    """
    result, damaged = list[Run](), list[Damaged]()
    for run in runs:
        try:
            run.require_sound()
            result.append(run)
        except Damaged as problem:
            damaged.append(problem)
    if damaged and (notes is None or not result):
        raise damaged[0]
    if notes is not None:
        notes += [f"skipping a run: {problem.what}" for problem in damaged]
    return result


def run_in(run: RunLike) -> Run:
    """Open one run.

    Raises:
        UsageError: There is no run, or there are several.
    """
    runs = runs_in(run)
    if len(runs) > 1:
        raise UsageError(
            f"{run} holds {len(runs)} runs; expected one", do="give the folder of one run"
        )
    return runs[0]


def _runs_of_sweep(folder: Path) -> list[Path]:
    """Return the run folders that the results of a sweep name; none for another folder."""
    file = folder / "results.json"
    if not ((folder / "sweep.toml").is_file() and file.is_file()):
        return []
    points = table_of(file, "SweepResults")["points"]
    folders = [run.get("folder") for point in points for run in point.get("runs", ())]
    return [folder / place for place in dict.fromkeys(folders) if place]


def grouped(
    runs: Runs,
    by: str | Sequence[str] = (),
    *,
    settings: bool = True,
    notes: list[str] | None = None,
) -> list[Group]:
    """Group the trials of runs, in the order in which the runs are given.

    Args:
        runs: Runs or their folders, or a mapping of labels to them.
        by: Options to group by (``method``, ``lr``, ``options.fedtgp.tau``), or ``run`` for one
            group per run; by default all options that differ.
        settings: True to put runs on other data into other groups and to name the data in labels.
        notes: See `sound_runs`.

    Returns:
        The groups with unique labels: the method, and other options that differ.

    Raises:
        UsageError: There is no run, or no run has an option of `by`.
    """
    labelled = runs_by_label(runs, notes)
    if "" not in labelled:
        return [
            Group(label, tuple(trial for run in group_runs for trial in trials_of(run)), place)
            for place, (label, group_runs) in enumerate(labelled.items())
        ]
    by = (by,) if isinstance(by, str) else tuple(by)
    keys = {id(run): _group_key(run, by) for run in labelled[""]}
    if by and all(value is None for key in keys.values() for value in key.values()):
        raise UsageError(
            f"no run has an option {' or '.join(by)} to group by",
            f"the first run has: {', '.join(recorded_options(labelled[''][0]))}"[:400],
        )
    together: dict[str, list[Run]] = {}
    for run in labelled[""]:
        key = json.dumps(keys[id(run)], sort_keys=True, default=str)
        together.setdefault(key + data_key(run) * settings, []).append(run)
    firsts = [group_runs[0] for group_runs in together.values()]
    names = labels_of(firsts, [keys[id(run)] for run in firsts], by, settings=settings)
    return [
        Group(name, tuple(trial for run in group_runs for trial in trials_of(run)), place)
        for place, (name, group_runs) in enumerate(zip(names, together.values(), strict=True))
    ]


def new_labels(labels: Labels, names: Iterable[str]) -> dict[str, str]:
    """Return {name of a group: its new label} for the groups that the user labels.

    Args:
        labels: {group: label}, or texts ``GROUP=LABEL``. A group is given by its whole name, or by
            the beginning of names up to a comma: ``fedtgp`` stands for the first word of
            ``fedtgp, tau=1`` and of ``fedtgp, tau=10``. Names and labels may contain "=".
        names: The names of all groups.

    Raises:
        UsageError: A text is not ``GROUP=LABEL``, a group does not exist, or two groups would have
            the same label.
    """
    names = list(dict.fromkeys(names))
    label_of = labels if isinstance(labels, Mapping) else _parsed(labels, names)
    result: dict[str, str] = {}
    for group in label_of:
        if not any(_begins(group, name) for name in names):
            raise unknown("group", group, names, "write --label 'GROUP=TEXT'")
    for name in names:
        if prefix := max((each for each in label_of if _begins(each, name)), key=len, default=""):
            result[name] = label_of[prefix] + name[len(prefix) :]
    shown = [result.get(name, name) for name in names]
    if twice := next((label for label in shown if shown.count(label) > 1), None):
        raise UsageError(
            f"--label: two groups would be called {twice!r}",
            f"groups: {'; '.join(names)}",
            "give each group another label",
        )
    return result


def _begins(group: str, name: str) -> bool:
    return bool(group) and f"{name}, ".startswith(f"{group}, ")


def _parsed(texts: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """Return {group: label} of texts ``GROUP=LABEL``."""
    result = {}
    for text in texts:
        parts = text.split("=")
        splits = [("=".join(parts[:n]), "=".join(parts[n:])) for n in range(1, len(parts))]
        known = [pair for pair in splits if any(_begins(pair[0], name) for name in names)]
        group, label = known[-1] if known else splits[0] if splits else ("", "")
        if not group or not label:
            first = names[0] if names else "GROUP"
            example = shlex.quote(f"{first}={text.strip('=') or 'TEXT'}")
            raise UsageError(
                f"--label {text}: expected GROUP=TEXT",
                f"groups: {'; '.join(names)}",
                f"write: --label {example}",
            )
        result[group] = label
    return result


def with_labels(groups: Iterable[Group], labels: Mapping[str, str]) -> list[Group]:
    """Return groups with the labels of `new_labels`."""
    return [replace(group, label=labels.get(group.label, group.label)) for group in groups]


def label_notes(labels: Mapping[str, str]) -> list[str]:
    """Return a line for each group with a new label."""
    return [f"label: {new} is {old}" for old, new in labels.items()]


def _group_key(run: Run, by: Sequence[str]) -> dict[str, Any]:
    if not by:
        return method_options(run)
    known, config = recorded_options(run), flat(run.config)
    result: dict[str, Any] = {}
    for name in by:
        of_plugins = [key for key in known if key.endswith(f".{name}")]
        if name == "run":
            result[name] = str(run.folder)
        elif name in config or not of_plugins:
            result[name] = config.get(name)
        else:
            result |= {key: known[key] for key in of_plugins}
    return result


def without_copies(groups: Iterable[Group], notes: list[str]) -> list[Group]:
    """Leave out trials with the options, data and seed of another trial.

    Args:
        groups: The groups.
        notes: Takes a line for each trial that is left out: the one with fewer evaluated rounds.
    """
    result = []
    for group in groups:
        alike = {
            id(r): (data_key(r), json.dumps(method_options(r), default=str)) for r in group.runs
        }
        kept: dict[tuple[str, str, int], Trial] = {}
        for trial in sorted(group.trials, key=lambda trial: -trial.evaluated):
            same = kept.setdefault((*alike[id(trial.run)], trial.seed), trial)
            if same is not trial:
                notes.append(f"skipping {trial.name}: same seed as {same.name}")
        left = {id(trial) for trial in kept.values()}
        kept_trials = tuple(t for t in group.trials if id(t) in left)
        result.append(replace(group, trials=kept_trials))
    return result


# --- the state of runs ----------------------------------------------------------------------------


def progress(run: Run) -> str:
    """Return how far an unfinished run is: ``unfinished: 3 of 6 rounds``; empty if finished."""
    if (state := run.state) == FINISHED:
        return ""
    ended = f", {run.interruption}" if run.interruption else ""
    return f"{state}: {run.rounds_done:,} of {count(run.asked, 'round')}{ended}"


def divergence(run: Run) -> str:
    """Return when a run diverged: ``diverged in round 3``; empty if it did not."""
    lost = [n for trial in trials_of(run) if (n := trial.diverged) is not None]
    if not lost:
        return ""
    rounds = sorted({*lost})
    text = f"diverged in round {' and '.join(str(n + 1) for n in rounds[:3])}"
    text += " and later" if len(rounds) > 3 else ""
    several = run.config["trials"] > 1
    return text + (f" ({len(lost)} of {len(run.trials)} trials)" if several else "")


def state_notes(runs: Iterable[Run]) -> list[str]:
    """Return a line for each run that lacks rounds or has diverged."""
    result = []
    for run in runs:
        short = run.rounds_done < run.asked
        state = ", ".join(filter(None, (progress(run) * short, divergence(run))))
        result += [f"{run.folder}: {state}"] if state else []
    return result


def no_rounds_error(runs: Iterable[Run]) -> UsageError:
    """Return the error for runs without any finished round."""
    notes = state_notes(runs)
    near = "; ".join(notes[:4]) + ("; …" if len(notes) > 4 else "")
    do = "wait for the first round, or resume a run: protofl run --resume --out FOLDER"
    return UsageError("there is no finished round in any of the runs", near, do)

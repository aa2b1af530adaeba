"""Runs grouped by what differs between them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from protofl.errors import UsageError
from protofl.records.folder.reading import runs_below
from protofl.records.folder.result import Result
from protofl.runs.reuse.run import Run, load_run
from protofl.system.files.checked import read_json
from protofl.system.files.tables import flat
from protofl.system.options.table import EXTENT
from protofl_workbench.comparing.naming import labels_of
from protofl_workbench.comparing.options import options_of, place, treatment
from protofl_workbench.comparing.trials import Trial, trials_of

Given: TypeAlias = "Run | Result | str | Path"
Runs: TypeAlias = "Given | Iterable[Given] | Mapping[str, Given | Iterable[Given]]"
"""A run, what `protofl.run` returned, its folder or a folder of runs; several; or by labels."""


@dataclass(frozen=True)
class Group:
    """Trials that differ in nothing but seeds.

    Attributes:
        label: What it is called.
        trials: They.
    """

    label: str
    trials: tuple[Trial, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs of which they are trials, each once."""
        return list({id(trial.run): trial.run for trial in self.trials}.values())


def opened(runs: Runs) -> dict[str, list[Run]]:
    """The runs by the labels that were given for them; without labels all under an empty one.

    Each is there once, and a folder that is no run's stands for the runs below it.

    Raises:
        UsageError: A folder is none of a run, or there is no run at all.
    """
    if isinstance(runs, Mapping):
        found = {str(label): _opened(own) for label, own in runs.items()}
    else:
        found = {"": _opened(runs)}
    empty = [label for label, own in found.items() if not own]
    if empty or not found:
        of = f" of {empty[0]}" if empty and empty[0] else ""
        raise UsageError(f"no runs{of} were given", do="give the folder of one at least")
    return found


def _opened(runs: Given | Iterable[Given]) -> list[Run]:
    each = [runs] if isinstance(runs, (Run, Result, str, Path)) else runs
    found: list[Run] = []
    for one in each:
        found += runs_in(one)
    # Parts of one folder, of fewer trials or rounds, are other runs.
    once = {(r.folder.absolute(), *(r.config.get(key) for key in EXTENT)): r for r in found}
    return list(once.values())


def runs_in(given: Given) -> list[Run]:
    """A run, the run in a folder, or all those below it.

    Raises:
        UsageError: There is none.
    """
    if isinstance(given, Run):
        return [given]
    folder = given.folder if isinstance(given, Result) else given
    path = Path(folder).expanduser()
    below = list(runs_below(path)) or _of_sweep(path)
    return [load_run(path) for path in below] or [load_run(folder)]


def _of_sweep(folder: Path) -> list[Path]:
    """The folders of a sweep's runs, which lie elsewhere, by its results; none of another folder.

    Raises:
        Damaged: ``results.json`` isn't whole.
    """
    file = folder / "results.json"
    if not ((folder / "sweep.toml").is_file() and file.is_file()):
        return []
    points = read_json(file).get("points", ())
    found = [run.get("folder") for point in points for run in point.get("runs", ())]
    return [folder / place for place in dict.fromkeys(found) if place]


def grouped(runs: Runs, by: str | Sequence[str] = (), *, settings: bool = True) -> list[Group]:
    """Runs as groups of trials, in the order in which they were given.

    Args:
        runs: Runs or their folders, or a mapping of labels to them.
        by: Options by which to group (``method``, ``lr``, ``options.fedtgp.tau``), or ``run`` for
            each run by itself; by what differs where none is given.
        settings: Whether runs on other data are other groups, whatever they are grouped by; then
            labels say on which.

    Returns:
        The groups, with labels of their own each: the method, and what else differs.

    Raises:
        UsageError: A folder is none of a run, or there is none.
    """
    labelled = opened(runs)
    if "" not in labelled:
        pairs = [(label, [trial for run in own for trial in trials_of(run)])
                 for label, own in labelled.items()]  # fmt: skip
        return [Group(label, tuple(trials)) for label, trials in pairs]
    by = (by,) if isinstance(by, str) else tuple(by)
    keys = {id(run): _key(run, by) for run in labelled[""]}
    if by and all(value is None for key in keys.values() for value in key.values()):
        raise UsageError(
            f"no run has an option {' or '.join(by)} to group by",
            f"the first has: {', '.join(options_of(labelled[''][0]))}"[:400],
        )
    together: dict[str, list[Run]] = {}
    for run in labelled[""]:
        key = json.dumps(keys[id(run)], sort_keys=True, default=str)
        together.setdefault(key + place(run) * settings, []).append(run)
    firsts = [own[0] for own in together.values()]
    names = labels_of(firsts, [keys[id(run)] for run in firsts], by, settings=settings)
    return [
        Group(name, tuple(trial for run in own for trial in trials_of(run)))
        for name, own in zip(names, together.values(), strict=True)
    ]


def without_copies(groups: Iterable[Group], notes: list[str]) -> list[Group]:
    """Groups without trials that repeat another one: the same options, data and seed say nothing.

    Args:
        groups: The groups.
        notes: What is left out is told here; of two the one with fewer evaluated rounds.
    """
    found = []
    for group in groups:
        alike = {id(r): (place(r), json.dumps(treatment(r), default=str)) for r in group.runs}
        kept: dict[tuple[str, str, int], Trial] = {}
        for trial in sorted(group.trials, key=lambda trial: -trial.evaluated):
            same = kept.setdefault((*alike[id(trial.run)], trial.seed), trial)
            if same is not trial:
                notes.append(f"{trial.name} is left out: it has the seed of {same.name}")
        left = {id(trial) for trial in kept.values()}
        found.append(Group(group.label, tuple(t for t in group.trials if id(t) in left)))
    return found


def _key(run: Run, by: Sequence[str]) -> dict[str, Any]:
    if not by:
        return treatment(run)
    known, whole = options_of(run), flat(run.config)
    found: dict[str, Any] = {}
    for name in by:
        ends = [key for key in known if key.endswith(f".{name}")]
        if name == "run":
            found[name] = str(run.folder)
        elif name in whole or not ends:
            found[name] = whole.get(name)
        else:
            found |= {key: known[key] for key in ends}
    return found

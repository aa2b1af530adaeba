"""Runs grouped by what differs between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from protofl.comparing.trials import Trial, trials_of
from protofl.errors import UsageError
from protofl.files.checked import read_json
from protofl.folder.reading import runs_below
from protofl.folder.result import Result
from protofl.recorded.run import Run, load_run

Given: TypeAlias = "Run | Result | str | Path"
Runs: TypeAlias = "Given | Iterable[Given] | Mapping[str, Given | Iterable[Given]]"
"""A run, what `protofl.run` returned, its folder or a folder of runs; several; or by labels."""

SETTING = (
    *("dataset", "data", "subset", "partition", "clients", "public", "hold_split"),
    *("eval_clients", "validation", "unseen", "options.dataset", "options.partition"),
)
"""What says on which data a run is, and on what it is scored."""

REPEATED = ("seed", "trials", "rounds")
"""Options that say how often and how long the same thing is done."""

PLACE = set(
    "block checkpoint_every data_dir deterministic device dry_step engine eval_every "
    "options.backend options.engine recipe server_threads".split()
)
"""Options of the machine and of what is kept, beside those that may change on resume."""

SAID_FIRST = ("method", "dataset", "models", "partition", "options.partition.beta", "clients")
"""What is said first of how runs differ; other options often go with one of these."""


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
    parts = ("seed", "trials", "rounds")
    once = {(r.folder.absolute(), *(r.config.get(key) for key in parts)): r for r in found}
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
        settings: Whether runs on other data are other groups.

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
    keys = {id(run): _key(run, by, settings) for run in labelled[""]}
    if by and all(value is None for key in keys.values() for value in key.values()):
        raise UsageError(
            f"no run has an option {' or '.join(by)} to group by",
            f"the first has: {', '.join(_options(labelled[''][0]))}"[:400],
        )
    together: dict[str, list[Run]] = {}
    for run in labelled[""]:
        together.setdefault(json.dumps(keys[id(run)], sort_keys=True, default=str), []).append(run)
    firsts = [own[0] for own in together.values()]
    names = _labels(firsts, [keys[id(run)] for run in firsts], by)
    return [
        Group(name, tuple(trial for run in own for trial in trials_of(run)))
        for name, own in zip(names, together.values(), strict=True)
    ]


def treatment(run: Run) -> dict[str, Any]:
    """What was done in a run, beside on which data, how often and where; flat, without defaults."""
    from protofl.plan.settings import FREE

    recorded = run.config.get("metrics")
    metrics = [f"options.{name}" for name in recorded] if isinstance(recorded, list) else []
    left_out = (*SETTING, *REPEATED, *PLACE, *FREE, *metrics)
    return {k: v for k, v in _options(run).items() if not _is_in(k, left_out)}


def setting(run: Run) -> dict[str, Any]:
    """On which data a run was, and on what it was scored; flat, without defaults.

    A data set goes by its name and the digest of its data, wherever its file lies.
    """
    found = {key: v for key, v in _options(run).items() if _is_in(key, SETTING)}
    found["dataset"] = str(run.config.get("dataset", "")).partition(":")[0]
    whole = dict(_flat(run.config))
    return found | {key: whole[key] for key in ("data.digest", "data.public") if key in whole}


def _options(run: Run) -> dict[str, Any]:
    """The options of a run and of its plugins, flat.

    Those of a run that have their default are left out: a version without them made the same run.
    """
    usual = _defaults()
    return dict(_flat({k: v for k, v in run.config.items() if k in usual and v != usual[k]}))


@cache
def _defaults() -> dict[str, Any]:
    """The options of a run and what they are where nothing is said."""
    from protofl.plan.settings import Settings

    fields = Settings.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields}


def option_of(run: Run, key: str) -> Any:  # noqa: ANN401 - options are of many types
    """What a configuration says under names with dots between them; None for nothing."""
    return dict(_flat(run.config)).get(key)


def said(run: Run, key: str) -> str:
    """An option's value, as it is or would be recorded, in a word or two."""
    value = {**dict(_flat(_defaults())), **dict(_flat(run.config))}.get(key)
    if key.startswith("data."):
        return f"{key.replace('.', ' ')} {str(value)[:8]}"
    if key in ("models", "dataset", "partition", "world", "generator") and value is not None:
        return str(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{key.rpartition('.')[2]}={'none' if value is None else text}"


def _key(run: Run, by: Sequence[str], settings: bool) -> dict[str, Any]:
    if not by:
        return treatment(run) | (setting(run) if settings else {})
    known, whole = _options(run), dict(_flat(run.config))
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


def _labels(runs: Sequence[Run], keys: Sequence[dict[str, Any]], by: Sequence[str]) -> list[str]:
    """Words that tell groups apart: the method, and of what else differs what it takes."""
    if list(by) == ["run"]:
        return [str(run.folder) for run in runs] if _same_names(runs) else [
            run.folder.name for run in runs
        ]  # fmt: skip
    words: list[list[str]] = [[run.name] if not by or "method" in by else [] for run in runs]
    alike = _apart(range(len(runs)), lambda n: runs[n].name if words[n] else "")
    for key in sorted({key for own in keys for key in own}, key=_first):
        # A key is said of those that it tells from others which are the same so far.
        for same in [same for same in alike if len(same) > 1]:
            parts = _apart(same, lambda n: repr(keys[n].get(key)))  # noqa: B023 - used at once
            if len(parts) > 1:
                alike = [*(other for other in alike if other is not same), *parts]
                for number in same:
                    words[number].append(said(runs[number], key))
    labels = [", ".join(own) or run.name for own, run in zip(words, runs, strict=True)]
    if len({*labels}) == len(labels):
        return labels
    return [f"{own} ({run.folder})" for own, run in zip(labels, runs, strict=True)]


def _apart(numbers: Iterable[int], of: Callable[[int], str]) -> list[list[int]]:
    """Numbers by what they have."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(of(number), []).append(number)
    return list(found.values())


def _first(key: str) -> tuple[int, str]:
    """In which order options are said: what a reader would name first."""
    return (SAID_FIRST.index(key) if key in SAID_FIRST else len(SAID_FIRST), key)


def _same_names(runs: Sequence[Run]) -> bool:
    return len({run.folder.name for run in runs}) < len(runs)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by names with dots between them; lists are one value."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _is_in(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)

"""What groups and data are called: by what tells them from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.runs.reuse.run import Run
from protofl.system.files.tables import flat
from protofl.system.options.table import default_values
from protofl_workbench.comparing.options import setting

SAID_FIRST = ("method", "dataset", "models", "partition", "options.partition.beta", "clients")
"""What is said first of how runs differ; other options often go with one of these."""

Keys = Sequence[Mapping[str, Any]]
"""Options of each of some runs."""


def data_name(config: Mapping[str, Any]) -> str:
    """The data set, or the name of its file."""
    name, _, file = str(config["dataset"]).partition(":")
    return Path(file).stem or name


def said(run: Run, key: str) -> str:
    """An option's value, as it is or would be recorded, in a word or two."""
    value = {**flat(default_values()), **flat(run.config)}.get(key)
    if key == "dataset":
        return data_name(run.config)
    if key.startswith("data."):
        return f"{key.replace('.', ' ')} {str(value)[:8]}"
    if key in ("models", "partition", "world", "generator") and value is not None:
        return str(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{key.rpartition('.')[2]}={'none' if value is None else text}"


def titles_of(runs: Sequence[Run]) -> list[str]:
    """On which data runs are, in words that tell them apart where settings do.

    Args:
        runs: A run of each setting (`protofl_workbench.comparing.options.setting`).
    """
    words = [[_title(run)] for run in runs]
    alike = _apart(range(len(runs)), lambda n: words[n][0])
    _tell(words, runs, [setting(run) for run in runs], alike)
    return [", ".join(own) for own in words]


def _title(run: Run) -> str:
    beta = setting(run).get("options.partition.beta")
    how = said(run, "partition") + (f" β={beta:g}" if isinstance(beta, float) else "")
    return f"{data_name(run.config)}, {how}, {run.config['clients']} clients"


def labels_of(runs: Sequence[Run], keys: Keys, by: Sequence[str], *, settings: bool) -> list[str]:
    """Words that tell groups apart: the method, and of what else differs what it takes.

    Where they are on several data, each says on which, also where its method would tell it apart.

    Args:
        runs: A run of each group.
        keys: By which options they are groups.
        by: The options by which was asked to group; ``run`` for each by itself.
        settings: Whether they may be on several data.
    """
    if list(by) == ["run"]:
        same = len({run.folder.name for run in runs}) < len(runs)
        words = [[str(run.folder) if same else run.folder.name] for run in runs]
    else:
        words = [[run.name] if not by or "method" in by else [] for run in runs]
    places: Keys = [setting(run) if settings else {} for run in runs]
    firsts = [(*own, repr(place)) for own, place in zip(words, places, strict=True)]
    _tell(words, runs, places, [list(range(len(runs)))])
    _tell(words, runs, keys, _apart(range(len(runs)), lambda n: repr(firsts[n])))
    labels = [", ".join(own) or run.name for own, run in zip(words, runs, strict=True)]
    if len({*labels}) == len(labels):
        return labels
    return [f"{own} ({run.folder})" for own, run in zip(labels, runs, strict=True)]


def _tell(words: list[list[str]], runs: Sequence[Run], keys: Keys, alike: list[list[int]]) -> None:
    """Add to words what tells runs apart that are the same so far."""
    for key in sorted({key for own in keys for key in own}, key=_first):
        for same in [same for same in alike if len(same) > 1]:
            parts = _apart(same, lambda n: repr(keys[n].get(key)))  # noqa: B023 - used at once
            if len(parts) > 1:
                alike = [*(other for other in alike if other is not same), *parts]
                names = {data_name(runs[number].config) for number in same}
                # A file's name says more than the digest of what is in it.
                word = "dataset" if key == "data.digest" and len(names) > 1 else key
                for number in same:
                    words[number].append(said(runs[number], word))


def _apart(numbers: Iterable[int], of: Callable[[int], str]) -> list[list[int]]:
    """Numbers by what they have."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(of(number), []).append(number)
    return list(found.values())


def _first(key: str) -> tuple[int, str]:
    """In which order options are said: what a reader would name first."""
    return (SAID_FIRST.index(key) if key in SAID_FIRST else len(SAID_FIRST), key)

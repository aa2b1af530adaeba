"""Labels of groups and titles of data, from the recorded options that differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.system.files.tables import flat
from protofl.system.options.option import Affects
from protofl.system.options.table import CHOOSING, OPTIONS, usual_values
from protofl.system.options.value_text import value_text
from protofl_workbench.recorded.recorded_run import Run

FIRST = ("method", "dataset", "models", "partition", "options.partition.beta", "clients")
"""Options that are named first; other differing options often follow from one of these."""

Keys = Sequence[Mapping[str, Any]]
"""The options of each of several runs."""


# --- the options of a run -------------------------------------------------------------------------


def recorded_options(run: Run) -> dict[str, Any]:
    """Return the options of a run and of its plugins as a flat mapping, without defaults.

    Older versions do not record options that they did not know, so defaults do not count.
    """
    usual = usual_values(run.config)
    options = {k: v for k, v in run.config.items() if k in OPTIONS and v != usual.get(k)}
    return flat(options)


def method_options(run: Run) -> dict[str, Any]:
    """Return the options that change the method; data, number of trials and place do not count."""
    return {k: v for k, v in recorded_options(run).items() if _affects(k, run) == "method"}


def data_options(run: Run) -> dict[str, Any]:
    """Return the options that change the data or the evaluation.

    A data set has its name and the digest of its data, wherever its file is.
    """
    options = {k: v for k, v in recorded_options(run).items() if _affects(k, run) == "data"}
    options["dataset"] = str(run.config.get("dataset", "")).partition(":")[0]
    config = flat(run.config)
    return options | {key: config[key] for key in ("data.digest", "data.public") if key in config}


def data_key(run: Run) -> str:
    """Return `data_options` as text: runs with the same text can be compared."""
    return json.dumps(data_options(run), sort_keys=True, default=str)


def _affects(key: str, run: Run) -> Affects:
    """Return what an option changes; options of a plugin change what the choice of it changes."""
    option, _, rest = key.partition(".")
    owner = rest.partition(".")[0] if option == "options" else ""
    if owner in (run.config.get("metrics") or ()):
        return OPTIONS["metrics"].affects
    return OPTIONS[owner if owner in CHOOSING else option].affects


# --- labels ---------------------------------------------------------------------------------------


def data_name(config: Mapping[str, Any]) -> str:
    """Return the name of the data set, or of its file."""
    name, _, file = str(config["dataset"]).partition(":")
    return Path(file).stem or name


def option_text(run: Run, key: str) -> str:
    """Return the value of an option in a word or two."""
    value = {**flat(usual_values(run.config)), **flat(run.config)}.get(key)
    if key == "dataset":
        return data_name(run.config)
    if key.startswith("data."):
        return f"{key.replace('.', ' ')} {str(value)[:8]}"
    if key in ("models", "partition", "devices", "generator") and value is not None:
        return str(value)
    return f"{key.rpartition('.')[2]}={value_text(value) or 'none'}"


def titles_of(runs: Sequence[Run]) -> list[str]:
    """Return a unique title of the data of each run.

    Args:
        runs: A run of each setting (`data_options`).
    """
    title_parts = []
    for run in runs:
        beta = data_options(run).get("options.partition.beta")
        partition = option_text(run, "partition") + (f" β={beta:g}" if type(beta) is float else "")
        title_parts.append(
            [f"{data_name(run.config)}, {partition}, {run.config['clients']} clients"]
        )
    alike = _classes(range(len(runs)), lambda n: title_parts[n][0])
    _distinguish(title_parts, runs, [data_options(run) for run in runs], alike)
    return [", ".join(parts) for parts in title_parts]


def labels_of(runs: Sequence[Run], keys: Keys, by: Sequence[str], *, settings: bool) -> list[str]:
    """Return a unique label for each group: the method, and every other option that differs.

    If the runs are on several data sets or splits, each label names the data.

    Args:
        runs: A run of each group.
        keys: The options of each group by which it is a group.
        by: The options that were requested for grouping; ``run`` for one group per run.
        settings: True if the runs may be on different data.
    """
    if list(by) == ["run"]:
        same = len({run.folder.name for run in runs}) < len(runs)
        label_parts = [[str(run.folder) if same else run.folder.name] for run in runs]
    else:
        label_parts = [[run.name] if not by or "method" in by else [] for run in runs]
    if settings:
        data = [data_options(run) for run in runs]
        named = [
            {k: v for k, v in options.items() if not k.startswith("data.")} for options in data
        ]
        _extend(label_parts, _differing(runs, named))
        # A digest is shown if nothing else tells the data apart.
        alike = _classes(range(len(runs)), lambda n: repr(named[n]))
        _distinguish(label_parts, runs, data, alike)
    if list(by) != ["run"]:
        _extend(label_parts, _differing(runs, keys))
    labels = [", ".join(parts) or run.name for parts, run in zip(label_parts, runs, strict=True)]
    if len({*labels}) == len(labels):
        return labels
    return [f"{label} ({run.folder})" for label, run in zip(labels, runs, strict=True)]


def _differing(runs: Sequence[Run], keys: Keys) -> list[list[str]]:
    """Return the label parts for all options that differ between groups.

    The options of a plugin are compared between the groups that use the plugin. In other groups,
    the name of the method or of another plugin differs already.
    """
    first = {key: n for n, key in enumerate(FIRST)}
    recorded = [flat(run.config) for run in runs]
    result: list[list[str]] = [[] for _ in runs]
    shown = []
    for key in sorted(
        {key for options in keys for key in options}, key=lambda k: (first.get(k, 99), k)
    ):
        there = [n for n, every in enumerate(recorded) if key in every or key in OPTIONS]
        texts = {n: option_text(runs[n], key) for n in there}
        differs = len({*texts.values()}) > 1
        # A hook that only some groups replace (``use.HOOK``) differs from no replacement.
        differs |= 0 < len(there) < len(runs) and not key.startswith("options.")
        if differs and key != "method":
            shown.append((key, texts))
    short = Counter(key.rpartition(".")[2] for key, _ in shown)
    for key, texts in shown:
        name = key.rpartition(".")[2]
        for n, text in texts.items():
            # Two options of one name have the names of their plugins too.
            full = short[name] > 1 and text.startswith(f"{name}=")
            result[n].append(key.removeprefix("options.") + text[len(name) :] if full else text)
    return result


def _extend(label_parts: list[list[str]], more: list[list[str]]) -> None:
    for parts, others in zip(label_parts, more, strict=True):
        parts += [word for word in others if word not in parts]


def _distinguish(
    label_parts: list[list[str]], runs: Sequence[Run], keys: Keys, alike: list[list[int]]
) -> None:
    """Add options to the label parts of runs that are alike so far, until all of them differ."""
    first = {key: n for n, key in enumerate(FIRST)}
    for key in sorted(
        {key for options in keys for key in options}, key=lambda k: (first.get(k, 99), k)
    ):
        for same in [same for same in alike if len(same) > 1]:
            classes = _classes(same, lambda n: repr(keys[n].get(key)))  # noqa: B023 - used at once
            if len(classes) > 1:
                alike = [*(other for other in alike if other is not same), *classes]
                names = {data_name(runs[number].config) for number in same}
                # The name of a file says more than its digest.
                word = "dataset" if key == "data.digest" and len(names) > 1 else key
                for number in same:
                    label_parts[number].append(option_text(runs[number], word))


def _classes(numbers: Iterable[int], of: Callable[[int], str]) -> list[list[int]]:
    """Return the numbers in classes with the same text."""
    classes: dict[str, list[int]] = {}
    for number in numbers:
        classes.setdefault(of(number), []).append(number)
    return list(classes.values())

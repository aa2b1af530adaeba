"""What runs were asked to do: on which data, and what was done there; options flat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from protofl.recorded.run import Run

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


def treatment(run: Run) -> dict[str, Any]:
    """What was done in a run, beside on which data, how often and where; flat, without defaults."""
    from protofl.plan.settings import FREE

    recorded = run.config.get("metrics")
    metrics = [f"options.{name}" for name in recorded] if isinstance(recorded, list) else []
    left_out = (*SETTING, *REPEATED, *PLACE, *FREE, *metrics)
    return {k: v for k, v in options_of(run).items() if not _is_in(k, left_out)}


def setting(run: Run) -> dict[str, Any]:
    """On which data a run was, and on what it was scored; flat, without defaults.

    A data set goes by its name and the digest of its data, wherever its file lies.
    """
    found = {key: v for key, v in options_of(run).items() if _is_in(key, SETTING)}
    found["dataset"] = str(run.config.get("dataset", "")).partition(":")[0]
    whole = dict(flat(run.config))
    return found | {key: whole[key] for key in ("data.digest", "data.public") if key in whole}


def options_of(run: Run) -> dict[str, Any]:
    """The options of a run and of its plugins, flat.

    Those of a run that have their default are left out: a version without them made the same run.
    """
    usual = defaults()
    return dict(flat({k: v for k, v in run.config.items() if k in usual and v != usual[k]}))


@cache
def defaults() -> dict[str, Any]:
    """The options of a run and what they are where nothing is said."""
    from protofl.plan.settings import Settings

    fields = Settings.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields}


def place(run: Run) -> str:
    """`setting` as a text, the same for runs that can be held against each other."""
    return json.dumps(setting(run), sort_keys=True, default=str)


def option_of(run: Run, key: str) -> Any:  # noqa: ANN401 - options are of many types
    """What a configuration says under names with dots between them; None for nothing."""
    return dict(flat(run.config)).get(key)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by names with dots between them; lists are one value."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def _is_in(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)

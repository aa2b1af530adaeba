"""What runs were asked to do: on which data, and what was done there; options flat."""

from __future__ import annotations

import json
from typing import Any

from protofl.runs.reuse.run import Run
from protofl.system.files.tables import flat
from protofl.system.options.option import Affects
from protofl.system.options.table import CHOOSING, OPTIONS, default_values


def treatment(run: Run) -> dict[str, Any]:
    """Return what was done in a run, not on which data, how often and where; without defaults."""
    return {k: v for k, v in options_of(run).items() if _affects(k, run) == "method"}


def setting(run: Run) -> dict[str, Any]:
    """Return the data of a run and on what it was scored; flat, without defaults.

    A data set goes by its name and the digest of its data, wherever its file lies.
    """
    found = {key: value for key, value in options_of(run).items() if _affects(key, run) == "data"}
    found["dataset"] = str(run.config.get("dataset", "")).partition(":")[0]
    whole = flat(run.config)
    return found | {key: whole[key] for key in ("data.digest", "data.public") if key in whole}


def _affects(key: str, run: Run) -> Affects:
    """Return what an option affects; an option of a plugin affects what the choice of it does."""
    option, _, rest = key.partition(".")
    owner = rest.partition(".")[0] if option == "options" else ""
    if owner in (run.config.get("metrics") or ()):
        return OPTIONS["metrics"].affects
    return OPTIONS[owner if owner in CHOOSING else option].affects


def options_of(run: Run) -> dict[str, Any]:
    """The options of a run and of its plugins, flat.

    Those of a run that have their default are left out: a version without them made the same run.
    """
    usual = default_values()
    given = {k: v for k, v in run.config.items() if k in OPTIONS and v != usual.get(k)}
    return flat(given)


def place(run: Run) -> str:
    """`setting` as a text, the same for runs that can be held against each other."""
    return json.dumps(setting(run), sort_keys=True, default=str)


def option_of(run: Run, key: str) -> Any:  # noqa: ANN401 - options are of many types
    """What a configuration says under names with dots between them; None for nothing."""
    return flat(run.config).get(key)

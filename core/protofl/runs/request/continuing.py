"""Options that are given again to a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.options.parsing import (
    check_again,
    merge_nested,
    merge_options,
    names_in,
    options_in,
)
from protofl.system.options.table import (
    EXTENDED,
    OPTIONS,
    RESUMABLE,
    UNRECORDED,
    default_values,
    flag_of,
    validated,
)


def continued(recorded: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that goes on: its own, and those that may differ as given.

    Raises:
        UsageError: An option is given that differs from the run's.
    """
    values, usual = options_in(recorded), default_values()
    may_differ = RESUMABLE - (UNRECORDED & values.keys()) | {"options", *EXTENDED}
    for key, value in given.items():
        if key in may_differ or key not in values:
            continue
        if value == "auto" and usual.get(key) == "auto":
            continue
        recipe = values.get("recipe")
        if key == "method" and isinstance(recipe, dict) and value == recipe.get("name"):
            continue
        if str(values[key]) not in (str(value), _as_recorded(key, value)):
            raise UsageError(
                f"{flag_of(key)} {value} differs from the run's {values[key]}",
                do="leave it out, or start a new run in another folder",
            )
    options, was = given.get("options", {}), set(values.get("metrics", ()))
    now = set(names_in(given.get("metrics", [*was])))
    told = set(names_in(given.get("track", [])))
    check_again(values["options"], options, RESUMABLE | was | now | told)
    values["options"] = {k: v for k, v in values["options"].items() if k not in was - now}
    free = {
        k: v for k, v in given.items() if k in RESUMABLE and (k in may_differ or k not in values)
    }
    free |= {key: given[key] for key in EXTENDED if given.get(key) is not None}
    return merge_options(values, free) | {"options": merge_nested(values["options"], options)}


def _as_recorded(key: str, value: Any) -> str:  # noqa: ANN401 - options are of many types
    """Return a value as config.json has it."""
    name, colon, path = str(value).partition(":")
    if OPTIONS[key].chooses and colon:
        return f"{name}:{Path(path).expanduser().resolve()}"
    if key == "public" and value == "none":
        return "0"
    found = validated(key, value)
    return str(found.expanduser().absolute() if isinstance(found, Path) else found)

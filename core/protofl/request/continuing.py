"""Options that are given again to a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.folder.run_folder import EXTENDED
from protofl.options.written import check_again, merge_nested, names_in, read_joins, read_share
from protofl.plan.settings import FREE, UNRECORDED
from protofl.request.options import merge_options, options_in


def continued(recorded: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that goes on: its own, and those that may differ as given.

    Raises:
        UsageError: An option is given that differs from the run's.
    """
    values = options_in(recorded)
    may_differ = FREE - (UNRECORDED & values.keys()) | {"options", *EXTENDED}
    for key, value in given.items():
        if key in may_differ or key not in values:
            continue
        if key in ("device", "backend") and value == "auto":
            continue
        recipe = values.get("recipe")
        if key == "method" and isinstance(recipe, dict) and value == recipe.get("name"):
            continue
        if str(values[key]) not in (str(value), _as_recorded(key, str(value))):
            raise UsageError(
                f"--{key.replace('_', '-')} {value} differs from the run's {values[key]}",
                do="leave it out, or start a new run in another folder",
            )
    options, was = given.get("options", {}), set(values.get("metrics", ()))
    now = set(names_in(given.get("metrics", [*was])))
    told = set(names_in(given.get("track", [])))
    check_again(values["options"], options, FREE | was | now | told)
    values["options"] = {k: v for k, v in values["options"].items() if k not in was - now}
    free = {k: v for k, v in given.items() if k in FREE and (k in may_differ or k not in values)}
    free |= {key: given[key] for key in EXTENDED if given.get(key) is not None}
    return merge_options(values, free) | {"options": merge_nested(values["options"], options)}


def _as_recorded(key: str, value: str) -> str:
    """A value as config.json records it."""
    if key in ("data_dir", "participants_from"):
        return str(Path(value).expanduser().absolute())
    if key == "public" and value == "none":
        return "0"
    if key in ("subset", "unseen", "validation"):
        return str(_number(value))
    if key == "join_round":
        return str(read_joins(value))
    name, colon, path = value.partition(":")
    if key in ("dataset", "selection", "world") and colon:
        return f"{name}:{Path(path).expanduser().resolve()}"
    return value


def _number(value: str) -> float | str:
    """A share or a number as a float; what is none as it is."""
    share = read_share(value)
    return share if isinstance(share, float) else value

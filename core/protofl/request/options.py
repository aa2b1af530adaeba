"""How users write the options of a run: on a command line, in a file, or from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofl.options.written import (
    added,
    assignments,
    dropped_term,
    every,
    expand_set,
    merge_nested,
    several,
)


def parse_options(typed: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Options by the names of `protofl.plan.settings`, from the long names that users write.

    Args:
        typed: Options as one types them; what is None counts as not given.
        owner: The method to which keys of ``set`` without a name belong, instead of their own.

    Raises:
        UsageError: One of them is not written as it should be.
    """
    found = {key: value for key, value in typed.items() if value is not None}
    given = assignments("--set", found.pop("set", ()), "[NAME.]KEY=VALUE")
    if given:
        nested = expand_set(given, owner or str(found.get("method") or ""))
        found["options"] = merge_nested(found.get("options", {}), nested)
    if "with" in found:
        found["wrappers"] = several("--with", found.pop("with"))
    if "use" in found:
        found["use"] = assignments("--use", found["use"], "HOOK=METHOD")
    for key, read in (("add", added), ("drop", dropped_term)):
        if key in found:
            found[key] = [read(text.strip()) for text in several(f"--{key}", found[key])]
    if "checkpoint_every" in found:
        found["checkpoint_every"] = every(found["checkpoint_every"])
    return found


def as_typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file or a program as one types them: there terms may stand without their hook.

    A run's ``config.json`` has them so.
    """
    found = dict(values)
    for key, prefix in (("add", "local_loss="), ("drop", "local_loss.")):
        if found.get(key) is not None:
            terms = several(f"--{key}", found[key])
            whole = {t for t in terms if "=" in t or t.partition(".")[0] == "local_loss"}
            found[key] = [t if t in whole else prefix + t for t in terms]
    return found


RECORD_ONLY = set(
    "plugins versions machine data layout files depends_on identity protofl description needs"
    "".split()
)
"""Entries of a run's config.json that record the run and are no options, and a recipe's text."""


def options_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a file are options."""
    values = {key.replace("-", "_"): value for key, value in values.items()}
    return {key: value for key, value in values.items() if key not in RECORD_ONLY}


def merge_options(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Options of a run, the second's winning; of --use hook by hook."""
    merged = {**base, **over}
    if "options" in base and "options" in over:
        merged["options"] = merge_nested(base["options"], over["options"])
    for key in {"use", "classes"} & base.keys() & over.keys():
        merged[key] = {**base[key], **over[key]}
    return merged

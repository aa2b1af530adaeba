"""How users write the options of a run: on a command line, in a file, or from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.options.written import assignments, expand_set, merge_nested, several


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
    for key, read in (("add", _added), ("drop", _dropped)):
        if key in found:
            found[key] = [read(text.strip()) for text in several(f"--{key}", found[key])]
    if "checkpoint_every" in found:
        found["checkpoint_every"] = _every(found["checkpoint_every"])
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


RECORD_ONLY = {"plugins", "versions", "data", "layout", "protofl", "description"}
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
    if "use" in base and "use" in over:
        merged["use"] = {**base["use"], **over["use"]}
    return merged


def _added(item: str) -> str:
    """``local_loss=METHOD.TERM`` as ``METHOD.TERM``."""
    hook, sign, term = (part.strip() for part in item.partition("="))
    method, _, name = term.partition(".")
    if hook == "local_loss" and method and name:
        return term
    near = f"did you mean local_loss={item}?" if "." in item and not sign else ""
    raise UsageError(
        f"--add {item}: not of the form local_loss=METHOD.TERM",
        near or "local_loss is the hook that has terms",
        "see the terms of a method: protofl show METHOD",
    )


def _dropped(item: str) -> str:
    """``local_loss.TERM`` as ``TERM``, ``local_loss.METHOD.TERM`` as ``METHOD.TERM``."""
    hook, _, term = item.partition(".")
    if hook == "local_loss" and term and "=" not in term:
        return term
    plausible = bool(hook) and hook != "local_loss" and "=" not in item
    raise UsageError(
        f"--drop {item}: not of the form local_loss.TERM",
        f"did you mean local_loss.{item}?" if plausible else "",
        "see the terms of a method: protofl show METHOD",
    )


def _every(value: Any) -> Any:  # noqa: ANN401 - it may come from a file
    if not isinstance(value, str):
        return value
    if value.lower() == "off":
        return 0
    if not value.isdigit() or int(value) == 0:
        raise UsageError(
            f"--checkpoint-every {value} is not possible", do="give a number of rounds, or off"
        )
    return int(value)

"""How users write the options of a run: on a command line, in a file, or from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protofl.errors import UsageError


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


def expand_set(values: Mapping[str, Any], bare: str) -> dict[str, dict[str, Any]]:
    """``[NAME.]KEY`` entries of --set as {plugin: {key: value}}; keys without a name are `bare`'s.

    Raises:
        UsageError: An entry names no option.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):  # TOML reads partition.beta = 0.5 as a table in a table
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    nested: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        owner, dot, option = key.rpartition(".")
        if (dot and not owner) or not option:
            raise UsageError(f"--set {key}={value}: no option", do="write [NAME.]KEY=VALUE")
        nested.setdefault(owner or bare, {})[option] = value
    return nested


def merge_nested(
    base: Mapping[str, Mapping[str, Any]], over: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Options of plugins, the second's winning key by key."""
    return {k: {**base.get(k, {}), **over.get(k, {})} for k in (*base, *over)}


def merge_options(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Options of a run, the second's winning; of --use hook by hook."""
    merged = {**base, **over}
    if "options" in base and "options" in over:
        merged["options"] = merge_nested(base["options"], over["options"])
    if "use" in base and "use" in over:
        merged["use"] = {**base["use"], **over["use"]}
    return merged


def assignments(flag: str, given: Mapping[str, Any] | Iterable[str], form: str) -> dict[str, Any]:
    """``KEY=VALUE`` texts as a mapping; the last of equal keys counts.

    Raises:
        UsageError: One has no ``=``, no key or no value.
    """
    if isinstance(given, Mapping):
        return dict(given)
    found = {}
    for item in several(flag, given):
        key, sign, value = item.partition("=")
        key, value = key.strip(), value.strip()
        if not (sign and key and value):
            raise UsageError(f"{flag} {item}: not of the form {form}", do=f"write {flag} {form}")
        found[key] = value
    return found


def several(flag: str, given: Any) -> list[str]:  # noqa: ANN401 - it may come from a file
    """A text or a list of texts as a list.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, str) for item in given):
        raise UsageError(f"{flag} takes a text or a list of texts, not {given!r}")
    return list(given)


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

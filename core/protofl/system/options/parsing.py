"""Options as users write them: ``KEY=VALUE`` texts, lists of texts, an owner before the key."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping
from fractions import Fraction
from typing import Any

from protofl.errors import UsageError

JOINS = "write --join-round N[:SHARE], several apart by commas: 20, 20:0.3, 10:0.2,20:0.2"
"""How ``--join-round`` is written."""


_JOIN = re.compile(r"(\d{1,8})(?::(\d*\.?\d+(?:e-?\d+)?|\d+/\d+))?")


def check_texts(values: Any) -> None:  # noqa: ANN401 - as JSON or TOML has them
    """Check that all strings could be file names, as any of them may become one.

    Raises:
        UsageError: One has a character that no name can have.
    """
    if isinstance(values, Mapping):
        check_texts([*values, *values.values()])
    elif isinstance(values, (list, tuple)):
        for value in values:
            check_texts(value)
    elif isinstance(values, (str, os.PathLike)):
        try:
            found = b"\0" in os.fsencode(values)
        except UnicodeEncodeError:
            found = True
        if found:
            raise UsageError(f"{str(values)!r} has a character that no name and no option has")


def assignments(flag: str, given: Mapping[str, Any] | Iterable[str], form: str) -> dict[str, Any]:
    """Return ``KEY=VALUE`` strings as a mapping; the last of equal keys counts.

    Raises:
        UsageError: One has no ``=``, no key or no value.
    """
    if isinstance(given, Mapping):
        return dict(given)
    found = {}
    for item in text_list(flag, given):
        key, sign, value = item.partition("=")
        key, value = key.strip(), value.strip()
        if not (sign and key and value):
            raise UsageError(f"{flag} {item}: not of the form {form}", do=f"write {flag} {form}")
        found[key] = value
    return found


def text_list(flag: str, given: Any) -> list[str]:  # noqa: ANN401 - it may come from a file
    """Return a string or a list of strings as a list.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, str) for item in given):
        raise UsageError(f"{flag} takes a text or a list of texts, not {given!r}")
    return list(given)


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
    """Merge options of plugins; the second mapping wins key by key."""
    return {k: {**base.get(k, {}), **over.get(k, {})} for k in (*base, *over)}


def check_unchanged(
    recorded: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Mapping[str, Any]],
    free: Container[str],
) -> None:
    """Check that options given again on resume equal those of the run.

    Args:
        recorded: Options of plugins that the run has.
        given: Those given again.
        free: Plugins whose options may differ.

    Raises:
        UsageError: One differs, or is nobody's.
    """
    for owner, values in given.items():
        for key, value in values.items() if owner not in free else ():
            if not owner:
                do = "with --resume write --set NAME.KEY=VALUE"
                raise UsageError(f"--set {key}={value}: whose option is not said", do=do)
            was = recorded.get(owner, {}).get(key)
            if str(was).lower() != str(value).lower():
                raise UsageError(
                    f"--set {owner}.{key}={value} differs from the run's {was}",
                    do="leave it out, or start a new run in another folder",
                )


def read_share(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``1/20`` as 0.05; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return float(Fraction(value))
    except (ValueError, ZeroDivisionError):
        return value


def read_names(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``A,B`` as a list of unique names; other values unchanged."""
    parts = value.split(",") if isinstance(value, str) else value
    texts = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    return [*dict.fromkeys(filter(None, map(str.strip, parts)))] if texts else parts


def read_joins(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``--join-round`` in one form: ``ROUND:SHARE[,…]``, in order of rounds.

    Entries without a share divide the clients evenly: with k of them, 1/(k+1) come in each.

    Raises:
        UsageError: It is of another form.
    """
    if value is None or isinstance(value, bool):
        return value
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    found = [_JOIN.fullmatch(str(item).replace(" ", "")) for item in items]
    if not found or not all(found):
        raise UsageError(f"--join-round {value} says no rounds", do=JOINS)
    rest = f"1/{len(found) + 1}"
    pairs = sorted((int(m[1]), m[2] or rest) for m in found if m)
    return ",".join(f"{round}:{share}" for round, share in pairs)


def read_rounds(value: Any) -> Any:  # noqa: ANN401 - it may come from a file
    """Return ``off`` as 0, and a number of rounds as an integer.

    Raises:
        UsageError: It is neither.
    """
    if not isinstance(value, str):
        return value
    if value.lower() == "off":
        return 0
    if not value.isdecimal() or int(value) == 0:
        raise UsageError(
            f"--checkpoint-every {value} is not possible", do="give a number of rounds, or off"
        )
    return int(value)


def read_addition(item: str) -> str:
    """Return ``local_loss=METHOD.TERM`` as ``METHOD.TERM``; ``HOOK=METHOD`` unchanged.

    Raises:
        UsageError: It is of neither form.
    """
    hook, sign, term = (part.strip() for part in item.partition("="))
    method, dot, name = term.partition(".")
    if hook == "local_loss" and method and name:
        return term
    if hook and method and not dot and hook != "local_loss":
        return f"{hook}={method}"
    near = f"did you mean local_loss={item}?" if "." in item and not sign else ""
    raise UsageError(
        f"--add {item}: not of the form local_loss=METHOD.TERM or HOOK=METHOD",
        near or "local_loss is the hook that has terms",
        "see the terms of a method: protofl show METHOD",
    )


def read_dropped_term(item: str) -> str:
    """Return ``local_loss.TERM`` as ``TERM``, ``local_loss.METHOD.TERM`` as ``METHOD.TERM``.

    Raises:
        UsageError: It is not of this form.
    """
    hook, _, term = item.partition(".")
    if hook == "local_loss" and term and "=" not in term:
        return term
    plausible = bool(hook) and hook != "local_loss" and "=" not in item
    raise UsageError(
        f"--drop {item}: not of the form local_loss.TERM",
        f"did you mean local_loss.{item}?" if plausible else "",
        "see the terms of a method: protofl show METHOD",
    )


# --- all options of a run ---------------------------------------------------------------------


def parse_options(typed: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Options by the names of `protofl.system.options.settings`, from the long names of users.

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
        found["wrappers"] = text_list("--with", found.pop("with"))
    if "use" in found:
        found["use"] = assignments("--use", found["use"], "HOOK=METHOD")
    for key, read in (("add", read_addition), ("drop", read_dropped_term)):
        if key in found:
            found[key] = [read(text.strip()) for text in text_list(f"--{key}", found[key])]
    return found


def as_typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a file or a program as typed; loss terms get their hook.

    A run's ``config.json`` has them so.
    """
    found = dict(values)
    for key, prefix in (("add", "local_loss="), ("drop", "local_loss.")):
        if found.get(key) is not None:
            terms = text_list(f"--{key}", found[key])
            whole = {t for t in terms if "=" in t or t.partition(".")[0] == "local_loss"}
            found[key] = [t if t in whole else prefix + t for t in terms]
    return found


RECORD_ONLY = set(
    "plugins versions machine data layout files depends_on identity protofl description needs"
    "".split()
)
"""Entries of a run's config.json that record the run and are no options, and a recipe's text."""


REMOVED = {"engine": {"fused"}}
"""{owner: plugins' options that protofl 0.1.0 recorded and this version does not have}."""


def options_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a recipe or a ``config.json``, without those of older versions."""
    values = {key.replace("-", "_"): value for key, value in values.items()}
    found = {key: value for key, value in values.items() if key not in RECORD_ONLY}
    if isinstance(found.get("options"), Mapping):
        found["options"] = without_removed(found["options"])
    return found


def without_removed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return plugins' options, {owner: {option: value}}, without those of older versions."""
    return {
        owner: {k: v for k, v in own.items() if k not in REMOVED[owner]}
        if owner in REMOVED
        else own
        for owner, own in options.items()
    }


def merge_options(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge options of a run; the second mapping wins."""
    merged = {**base, **over}
    if "options" in base and "options" in over:
        merged["options"] = merge_nested(base["options"], over["options"])
    for key in {"use", "classes"} & base.keys() & over.keys():
        merged[key] = {**base[key], **over[key]}
    return merged

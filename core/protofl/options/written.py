"""Options as users write them: ``KEY=VALUE`` texts, lists of texts, an owner before the key."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from protofl.errors import UsageError


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


def check_again(
    recorded: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Mapping[str, Any]],
    free: Container[str],
) -> None:
    """Whether options that are given again to a run that goes on are the run's.

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

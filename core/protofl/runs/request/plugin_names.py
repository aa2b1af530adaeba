"""Names for classes that options give by their place: ``FILE.py:CLASS`` or ``MODULE:CLASS``.

All other code knows plugins by name. `protofl.runs.request.program_classes` gives the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from protofl.hooks.discovery.kinds import KINDS
from protofl.system.files.home import expand_user
from protofl.system.options.table import CHOOSING, SEVERAL

Extra = dict[tuple[str, str], type]
"""Plugin classes that are not installed, {(kind, name): class}."""

_FILE = re.compile(r"(.+?\.py):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::(.*))?", re.DOTALL)
_LISTS = {"with": "payload-transform", "transforms": "payload-transform", **SEVERAL}
_MODULE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)()")


def matched(text: str) -> re.Match[str] | None:
    """Return the match of a text that is the place of a class; None for other texts."""
    return _FILE.fullmatch(text) or _MODULE.fullmatch(text)


def place_in(kind: str, text: str) -> tuple[str, str]:
    """Return the place of a class in a text, and its argument; empty where it names none."""
    match = matched(text)
    if match is None:
        return "", ""
    place, name, argument = match.groups()
    if place.endswith(".py") and match.re is _FILE:
        return f"{expand_user(place).resolve()}:{name}", argument
    if "." not in place and kind not in ("method", "payload-transform"):
        return "", ""  # NAME:ARGUMENT
    return f"{place}:{name}", argument


def places_in(typed: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {option: places of classes that it names}; nothing is imported."""
    result: dict[str, list[str]] = {}

    def collect(option: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - of any type
        if isinstance(value, str) and (place := place_in(kind, value)[0]):
            result.setdefault(option, []).append(place)
        return value

    with_names(typed, collect)
    for option in ("class", "classes"):
        classes = typed.get(option)
        if isinstance(classes, Mapping):
            for label, place in classes.items():
                collect(f"{option}.{label}", "method", str(place))
        for item in [] if isinstance(classes, Mapping) else as_list(classes):
            collect(option, "method", of_kind(item)[1])
    return result


def with_names(typed: Mapping[str, Any], name: Callable[[str, str, Any], Any]) -> dict[str, Any]:
    """Return options in which every value that names a plugin is replaced.

    Args:
        typed: Options by the long names of ``protofl run``; None counts as not given.
        name: Returns the name for an option, its kind and a value.
    """
    options = {key: value for key, value in typed.items() if value is not None}
    for option, kind in {"method": "method", **CHOOSING}.items():
        if option in options:
            options[option] = name(option, kind, options[option])
    for option, kind in _LISTS.items():
        if option in options:
            listed = options[option]
            items = listed.split(",") if isinstance(listed, str) else as_list(listed)
            options[option] = [name(option, kind, item) for item in items]
    if isinstance(use := options.get("use"), Mapping):
        options["use"] = {hook: name("use", "method", value) for hook, value in use.items()}
    elif use is not None:
        options["use"] = [_used(item, partial(name, "use", "method")) for item in as_list(use)]
    if "add" in options:
        rename = partial(name, "add", "method")
        options["add"] = [_added(item, rename) for item in as_list(options["add"])]
    return options


def _used(item: Any, name: Callable[[str], Any]) -> Any:  # noqa: ANN401 - whatever a user writes
    """Replace the class in ``HOOK=METHOD``; other values stay for whoever parses them."""
    hook, sign, method = item.partition("=") if isinstance(item, str) else ("", "", "")
    return f"{hook}={name(method.strip())}" if sign else item


def _added(item: Any, name: Callable[[str], Any]) -> Any:  # noqa: ANN401 - whatever a user writes
    """Replace the class of a file in ``HOOK=METHOD`` or ``local_loss=METHOD.TERM``."""
    hook, sign, rest = item.partition("=") if isinstance(item, str) else ("", "", "")
    if not sign or not _FILE.fullmatch(rest):
        return item
    place, dot, term = rest.rpartition(".") if hook.strip() == "local_loss" else (rest, "", "")
    return f"{hook}={name(place)}{dot}{term}"


def gives_classes(typed: Mapping[str, Any]) -> bool:
    """Return True if options give a class by its place."""
    return bool({"class", "classes"} & typed.keys() or places_in(typed))


def without_classes(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that give no class, as `program_classes.name_plugins` returns others."""
    options = with_names(typed, lambda option, kind, value: value)
    block = options.pop("block", None) or []
    return options | ({"block": [block] if isinstance(block, str) else [*block]} if block else {})


def of_kind(entry: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever a user writes
    """Return kind and place of ``[KIND/]PLACE``; an empty kind where none stands."""
    kind, slash, rest = str(entry).partition("/")
    return (kind, rest) if slash and kind in KINDS else ("", str(entry))


def as_list(value: Any) -> list[Any]:  # noqa: ANN401 - whatever a user writes
    """Return a list as it is, and another value as the only item of one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]

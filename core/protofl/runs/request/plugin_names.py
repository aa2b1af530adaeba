"""Names for classes that options give by their place: ``FILE.py:CLASS`` or ``MODULE:CLASS``.

All other code knows plugins by name. `protofl.runs.request.program_classes` does the same for
classes, instances and arrays that a program passes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protofl.errors import Clash, UsageError
from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl.hooks.discovery.registry import installed
from protofl.system.consent import allow, check_code
from protofl.system.files.home import expand_user
from protofl.system.options.table import CHOOSING, SEVERAL

Extra = dict[tuple[str, str], type]
"""Plugin classes that are not installed, {(kind, name): class}."""

_FILE = re.compile(r"(.+?\.py):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::(.*))?", re.DOTALL)
_LISTS = {"with": "payload-transform", "transforms": "payload-transform", **SEVERAL}
_MODULE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)()")


@dataclass
class ClassNames:
    """Names of classes, collected while options are read.

    Attributes:
        classes: {KIND/NAME: place of the class}; an empty place for a class of this program alone.
        block: Plugins that the run leaves out, among them those that a class replaces.
        extra: The classes of this program.
        notes: Lines for the user.
    """

    classes: dict[str, str] = field(default_factory=dict)
    block: list[str] = field(default_factory=list)
    extra: Extra = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def among(cls, options: Mapping[str, Any], extra: Extra | None = None) -> ClassNames:
        """Return the names that options have already.

        Args:
            options: Options by the long names of ``protofl run``.
            extra: The classes of this program.
        """
        known, block = options.get("classes"), options.get("block") or []
        return cls(
            dict(known) if isinstance(known, Mapping) else {},
            [block] if isinstance(block, str) else [*block],
            dict(extra or {}),
        )

    def into(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options with these classes, and without what they replace."""
        merged = {key: value for key, value in options.items() if key not in ("classes", "block")}
        merged |= {"classes": self.classes} if self.classes else {}
        return merged | ({"block": self.block} if self.block else {})

    def of_text(self, kind: str, text: Any) -> Any:  # noqa: ANN401 - whatever a user writes
        """Return the name of ``FILE.py:CLASS`` or ``MODULE:CLASS``; anything else unchanged."""
        place, argument = _place(kind, text) if isinstance(text, str) else ("", "")
        if not place:
            return text
        from protofl.system.class_places import load

        label = self.of_class(kind, load(place), place)
        return f"{label}:{argument}" if argument else label

    def of_class(self, kind: str, plugin: type, place: str | None = None) -> str:
        """Return the name of a class: where it is installed that one, otherwise its own.

        Args:
            kind: Its kind; empty to find it by its hooks.
            plugin: The class.
            place: The place by which the user named it; None if a program passed the class.

        Raises:
            UsageError: Another class has the name, or the hooks fit no kind.
        """
        kind = kind or kind_of(plugin)
        if name := installed_name(kind, plugin):
            return name
        from protofl.system.class_places import place_of_class

        name = plain_name(plugin)
        label, where = f"{kind}/{name}", place_of_class(plugin) if place is None else place
        same = self.classes.get(label, where) == where
        if self.extra.get((kind, name), plugin) is not plugin or not same:
            raise Clash(f"two classes are called {label}", do="give one of them another name")
        if place is None:
            allow([where])
            self.extra[kind, name] = plugin
        self.classes[label] = where
        self._replace(kind, name)
        return name

    def _replace(self, kind: str, name: str) -> None:
        """Block installed plugins of the same name, because the given class replaces them."""
        for plugin in installed(kind, self.block):
            if plugin.name == name:
                self.block.append(f"{plugin.label}@{plugin.distribution}")
                owned = f"the {plugin.kind} of {plugin.distribution}"
                self.notes.append(f"{name!r} is the class given, not {owned}")


def _place(kind: str, text: str) -> tuple[str, str]:
    """Return the place of a class in a text, and its argument; empty where it names none."""
    match = _FILE.fullmatch(text) or _MODULE.fullmatch(text)
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
        if isinstance(value, str) and (place := _place(kind, value)[0]):
            result.setdefault(option, []).append(place)
        return value

    with_names(typed, collect)
    for option in ("class", "classes"):
        classes = typed.get(option)
        if isinstance(classes, Mapping):
            for label, place in classes.items():
                collect(f"{option}.{label}", "method", str(place))
        for item in [] if isinstance(classes, Mapping) else _list(classes):
            collect(option, "method", _of_kind(item)[1])
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
            items = listed.split(",") if isinstance(listed, str) else _list(listed)
            options[option] = [name(option, kind, item) for item in items]
    if isinstance(use := options.get("use"), Mapping):
        options["use"] = {hook: name("use", "method", value) for hook, value in use.items()}
    elif use is not None:
        options["use"] = [_used(item, partial(name, "use", "method")) for item in _list(use)]
    if "add" in options:
        rename = partial(name, "add", "method")
        options["add"] = [_added(item, rename) for item in _list(options["add"])]
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


def name_plugins(
    typed: Mapping[str, Any], file: str = "", extra: Extra | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Replace places of classes among options by names.

    A class that is installed has its name there; another one its own in lower case with hyphens.
    Places are recorded, so that other processes and a resumed run find the classes.

    Args:
        typed: Options by the long names of ``protofl run``, as texts.
        file: The file that holds them, whose classes need consent; empty for options of the
            command line or of a program, which are consent.
        extra: Classes of this program, which have names already.

    Returns:
        The options, and lines for the user.

    Raises:
        UsageError: A place has no consent or no class, or a class has no hooks of its kind.
    """
    if file:
        check_code(places_in(typed), file)
    else:
        allow(place for places in places_in(typed).values() for place in places)
    options = dict(typed)
    if isinstance(options.get("class"), Mapping):
        options["classes"] = options.pop("class")
    names = ClassNames.among(options, extra)
    for option in ("class", "classes"):
        if not isinstance(options.get(option), Mapping):
            for item in _list(options.pop(option, None) or []):
                _register(names, item)
    named = with_names(options, lambda option, kind, value: names.of_text(kind, value))
    return names.into(named), names.notes


def _register(names: ClassNames, entry: Any) -> None:  # noqa: ANN401 - whatever a user writes
    """Give a name to a class of ``--class``, ``[KIND/]PLACE``, which options may name."""
    kind, place = _of_kind(entry)
    name = place
    if match := _FILE.fullmatch(place) or _MODULE.fullmatch(place):
        from protofl.system.class_places import load

        name = names.of_text(kind or kind_of(load(f"{match[1]}:{match[2]}")), place)
    if name == place:
        raise UsageError(
            f"--class {place}: no class", do="write [KIND/]FILE.py:CLASS or MODULE:CLASS"
        )


def _of_kind(entry: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever a user writes
    """Return kind and place of ``[KIND/]PLACE``; an empty kind where none stands."""
    kind, slash, rest = str(entry).partition("/")
    return (kind, rest) if slash and kind in KINDS else ("", str(entry))


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - whatever a user writes
    return list(value) if isinstance(value, (list, tuple)) else [value]


def marked_hooks(plugin: type) -> dict[str, dict[str, Any]]:
    """Return the marked methods of a class, {hook: options of its mark}."""
    methods = inspect.getmembers(plugin, inspect.isroutine)
    return {name: m.protofl_impl for name, m in methods if hasattr(m, "protofl_impl")}


def installed_name(kind: str, plugin: type) -> str:
    """Return the name under which a class is installed; empty if it is not."""
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    return next((p.name for p in installed(kind) if p.target == target), "")


def plain_name(plugin: type) -> str:
    """Return the plugin name of a class: ``PrototypeMean`` as ``prototype-mean``."""
    hyphenated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", plugin.__name__)
    return hyphenated.lower().strip("_-")


def kind_of(plugin: type) -> str:
    """Return the kind whose hooks a class implements.

    Raises:
        UsageError: It implements hooks of none, or of several.
    """
    marked = marked_hooks(plugin)
    wraps = any(options.get("wrapper") for options in marked.values())
    wraps |= bool({*marked} & ({*spec_hooks("payload-transform")} - {*spec_hooks("method")}))
    wraps |= getattr(plugin, "attack", False)
    if wraps and {*marked} <= {*spec_hooks("payload-transform")}:
        return "payload-transform"
    kinds = [k for k in KINDS if k != "payload-transform" and {*marked} & {*spec_hooks(k)}]
    if len(kinds) != 1:
        what = "no hook" if not kinds else f"hooks of several kinds: {', '.join(kinds)}"
        raise UsageError(
            f"{plugin.__name__} has {what}",
            do="say which kind it is: protofl check KIND/MODULE:CLASS",
        )
    return kinds[0]

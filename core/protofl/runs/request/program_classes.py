"""Names for classes that options give by their place, and for those that a program passes.

A program also passes instances and arrays. `name_plugins` is the door of all options that give a
class, `name_classes` that of `protofl.run` and `protofl.sweep`: behind it all options are texts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from protofl.errors import Clash, UsageError
from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl.hooks.discovery.registry import installed
from protofl.runs.request.plugin_names import (
    Extra,
    as_list,
    matched,
    of_kind,
    place_in,
    places_in,
    with_names,
)
from protofl.system.class_places import load, place_of_class
from protofl.system.consent import allow, check_code
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user

ARRAYS_PLACE = "protofl_plugins.datasets.arrays:Arrays"
"""The data set plugin for arrays of a program."""


@dataclass(frozen=True)
class NamedOptions:
    """Options with a name for every class, instance and array.

    Attributes:
        typed: The options as one types them.
        extra: The classes that the program passed.
        arrays: The arrays that the program passed.
        notes: Lines for the user.
    """

    typed: dict[str, Any]
    extra: Extra
    arrays: tuple[Any, ...]
    notes: tuple[str, ...]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the arrays at hand for the runs of the block."""
        with ExitStack() as until:
            for arrays in self.arrays:
                until.enter_context(arrays.open())
            yield


def name_classes(typed: Mapping[str, Any]) -> NamedOptions:
    """Replace classes, instances and arrays among options by names.

    Args:
        typed: Options by the long names of ``protofl run``.

    Raises:
        UsageError: A class has no hooks of its kind, or arrays are no data set.
    """
    options = dict(typed)
    names = ClassNames.among(options)

    def name(_: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - whatever a user writes
        if isinstance(value, type):
            return names.of_class(kind, value)
        if not isinstance(value, str) and marked_hooks(type(value)):
            return names.of_class(kind, _only(value) if vars(value) else type(value))
        return value

    further = options.get("classes")
    if further is not None and not isinstance(further, Mapping):
        listed = [further] if isinstance(further, (str, type)) else [*further]
        options["classes"] = [item for item in listed if name("", "", item) is item]
    options, arrays = with_names(options, name), []
    if not isinstance(options.get("dataset"), (str, bool, int, float, type(None))):
        plugin: Any = load(ARRAYS_PLACE)
        folder = expand_user(options.get("data_dir") or default_data_dir())
        given = plugin.given(options["dataset"], folder)
        if isinstance(given, str):
            options["dataset"] = given
        else:
            arrays.append(given)
            options["dataset"] = given.name
            names.classes["dataset/arrays"] = ARRAYS_PLACE
    texts = options.get("classes")
    options = names.into(options)
    if isinstance(texts, list) and texts:
        options["class"] = texts
    return NamedOptions(options, names.extra, tuple(arrays), tuple(names.notes))


def _only(instance: Any) -> type:  # noqa: ANN401 - an instance of any plugin
    """Return a class whose only instance is this one, with its attributes as class attributes."""
    cls, made = type(instance), lambda cls: instance
    about = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__new__": made}
    return type(cls.__name__, (cls,), {**vars(instance), **about})


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
        place, argument = place_in(kind, text) if isinstance(text, str) else ("", "")
        if not place:
            return text
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
            for item in as_list(options.pop(option, None) or []):
                _register(names, item)
    named = with_names(options, lambda option, kind, value: names.of_text(kind, value))
    return names.into(named), names.notes


def _register(names: ClassNames, entry: Any) -> None:  # noqa: ANN401 - whatever a user writes
    """Give a name to a class of ``--class``, ``[KIND/]PLACE``, which options may name."""
    kind, place = of_kind(entry)
    name = place
    if match := matched(place):
        name = names.of_text(kind or kind_of(load(f"{match[1]}:{match[2]}")), place)
    if name == place:
        raise UsageError(
            f"--class {place}: no class", do="write [KIND/]FILE.py:CLASS or MODULE:CLASS"
        )


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

"""Names for plugin classes, instances and paths that a user passes in place of names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protofl.errors import Clash, UsageError
from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl.hooks.discovery.registry import ARRAYS_PLACE, Registry
from protofl.runs.request import Request, read_request
from protofl.system.consent import allow, check_code
from protofl.system.files.home import expand_user
from protofl.system.options.parsing import assignments
from protofl.system.options.table import CHOOSING, SEVERAL
from protofl.system.sources import load, place_of_class

if TYPE_CHECKING:
    from protofl.data.in_memory import ArrayData


_FILE = re.compile(r"(.+?\.py):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::(.*))?", re.DOTALL)
_LISTS = {"with": "wrapper", "wrappers": "wrapper", **SEVERAL}
_MODULE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)()")


@dataclass
class NamedOptions:
    """Options with a name for every plugin, and the classes that have some of these names.

    Attributes:
        typed: The options as one types them.
        extra: The classes that the program gave, {(kind, name): class}.
        offers: Arrays that the program gave.
        notes: Lines for the user.
    """

    typed: dict[str, Any]
    extra: dict[tuple[str, str], type] = field(default_factory=dict)
    offers: list[ArrayData] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def name(self, kind: str, given: Any) -> Any:  # noqa: ANN401 - whatever a user writes
        """Return a name for a class, an instance or a place; other values unchanged."""
        if isinstance(given, str):
            return self._of_text(kind, given)
        if isinstance(given, type):
            return self._of_class(kind, given)
        if _hooks_of(type(given)):
            own = vars(given)
            return self._of_class(kind, _only(given) if own else type(given))
        return given

    def _of_text(self, kind: str, text: str) -> str:
        """Return the name of ``FILE.py:CLASS`` or ``MODULE:CLASS``; a name unchanged."""
        place, argument = _place(kind, text)
        if not place:
            return text
        label = self._of_class(kind, load(place), place)
        return f"{label}:{argument}" if argument else label

    def _of_class(self, kind: str, plugin: type, place: str | None = None) -> str:
        kind = kind or kind_of(plugin)
        if installed := installed_name(kind, plugin):
            return installed
        name = plain_name(plugin)
        classes, label = self.typed.setdefault("classes", {}), f"{kind}/{name}"
        where = place_of_class(plugin) if place is None else place
        if self.extra.get((kind, name), plugin) is not plugin or classes.get(label, where) != where:
            raise Clash(f"two classes are called {label}", do="give one of them another name")
        if place is None:
            allow([where])
            self.extra[kind, name] = plugin
        classes[label] = where
        self._block(kind, name)
        return name

    def _block(self, kind: str, name: str) -> None:
        """Block installed plugins of the same name, because the given class replaces them."""
        kinds = ("method", "recipe") if kind == "method" else (kind,)
        blocked = self.typed.get("block") or []
        blocked = [blocked] if isinstance(blocked, str) else [*blocked]
        for plugin in (p for k in kinds for p in Registry(blocked).plugins(k) if p.name == name):
            self.typed["block"] = blocked = [*blocked, f"{plugin.label}@{plugin.distribution}"]
            owned = f"the {plugin.kind} of {plugin.distribution}"
            self.notes.append(f"{name!r} is the class given, not {owned}")


def _place(kind: str, text: str) -> tuple[str, str]:
    """Return the place of a class in a text, and its argument; empty where it names none."""
    found = _FILE.fullmatch(text) or _MODULE.fullmatch(text)
    if found is None:
        return "", ""
    place, name, argument = found.groups()
    if place.endswith(".py") and found.re is _FILE:
        return f"{expand_user(place).resolve()}:{name}", argument
    if "." not in place and kind not in ("method", "wrapper"):
        return "", ""  # NAME:ARGUMENT
    return f"{place}:{name}", argument


def places_in(typed: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {option: places of classes that it names}; nothing is imported."""
    found: dict[str, list[str]] = {}
    for option, kind, text in _names(typed):
        if place := _place(kind, text)[0]:
            found.setdefault(option, []).append(place)
    return found


def _names(typed: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the option, the kind and each text in place of a plugin's name."""
    for option, kind in {"method": "method", **CHOOSING}.items():
        if isinstance(given := typed.get(option), str):
            yield option, kind, given
    for option, kind in _LISTS.items():
        given = typed.get(option)
        for item in given.split(",") if isinstance(given, str) else _list(given):
            if isinstance(item, str):
                yield option, kind, item
    for option in ("class", "classes"):
        given = typed.get(option)
        if isinstance(given, Mapping):
            yield from ((f"{option}.{label}", "method", str(at)) for label, at in given.items())
            continue
        for item in filter(lambda item: isinstance(item, str), _list(given)):
            kind, slash, rest = item.partition("/")
            yield option, "method", rest if slash and kind in KINDS else item
    use = typed.get("use")
    for item in use.values() if isinstance(use, Mapping) else _list(use):
        if isinstance(item, str):
            yield "use", "method", item if isinstance(use, Mapping) else item.partition("=")[2]
    for item in _list(typed.get("add")):
        if isinstance(item, str):
            rest = item.partition("=")[2]
            yield "add", "method", rest
            yield "add", "method", rest.rpartition(".")[0]


def name_plugins(typed: Mapping[str, Any], file: str = "") -> NamedOptions:
    """Replace classes, instances and arrays among options by names.

    A class may stand for any plugin: itself, an instance of it, or its place, ``MODULE:CLASS`` or
    ``FILE.py:CLASS``. One that is installed has its name there; another one its own in lower case
    with hyphens. Places are recorded, so that other processes and a run that goes on find the
    classes.

    Args:
        typed: Options by the long names of ``protofl run``.
        file: The file that holds them, whose classes need consent; empty for options of the
            command line or of a program, which are consent.

    Raises:
        UsageError: A place has no consent or no class, a class has no hooks of the kind that is
            wanted, or arrays are no data set.
    """
    if file:
        check_code(places_in(typed), file)
    else:
        allow(place for places in places_in(typed).values() for place in places)
    found = NamedOptions({key: value for key, value in typed.items() if value is not None})
    options = found.typed
    further = options.pop("class", None) or options.pop("classes", None) or {}
    options |= {"classes": dict(further)} if isinstance(further, Mapping) else {}
    for given in () if isinstance(further, Mapping) else _list(further):
        _further(found, given)
    for option, kind in {"method": "method", **CHOOSING}.items():
        if option in options:
            options[option] = found.name(kind, options[option])
    for option, kind in _LISTS.items():
        if option in options:
            given = options[option]
            items = given.split(",") if isinstance(given, str) else _list(given)
            options[option] = [found.name(kind, item) for item in items]
    if "use" in options:
        pairs = assignments("--use", options["use"], "HOOK=METHOD")
        options["use"] = {hook: found.name("method", given) for hook, given in pairs.items()}
    if "add" in options:
        options["add"] = [_added(found, item) for item in _list(options["add"])]
    if not isinstance(options.get("dataset"), (str, bool, int, float, type(None))):
        from protofl.data.in_memory import ARRAYS, ArrayData  # imports torch

        offer = ArrayData.of(options["dataset"])
        found.offers.append(offer)
        options["dataset"] = offer.name
        options.setdefault("classes", {})[f"dataset/{ARRAYS}"] = ARRAYS_PLACE
    if not options.get("classes"):
        options.pop("classes", None)
    return found


def named_request(
    typed: Mapping[str, Any],
    file: str = "",
    **places: Any,  # noqa: ANN401
) -> tuple[Request, NamedOptions]:
    """Return a request with names in place of classes and arrays, and the named options.

    Args:
        typed: Options by the long names of ``protofl run``.
        file: The file that holds these options, as `named` takes it.
        **places: The files of a request, and whether it continues, as `read_request` takes them.

    Raises:
        UsageError: An option is not written as it should be.
    """
    found = name_plugins(typed, file)
    below = f"--config {places.get('config')}"
    request = read_request(found.typed, **places, named=lambda own: name_plugins(own, below).typed)
    request.extra = found.extra
    return request, found


def _further(found: NamedOptions, given: Any) -> None:  # noqa: ANN401 - whatever a user writes
    """Add a class that options may name."""
    kind, slash, rest = given.partition("/") if isinstance(given, str) else ("", "", "")
    kind, given = (kind, rest) if slash and kind in KINDS else ("", given)
    if not isinstance(given, str):
        name = found.name(kind, given)
    elif match := _FILE.fullmatch(given) or _MODULE.fullmatch(given):
        plugin = load(f"{match[1]}:{match[2]}")
        name = found._of_text(kind or kind_of(plugin), given)
    else:
        name = given
    if name is given:
        raise UsageError(
            f"--class {given}: no class", do="write [KIND/]FILE.py:CLASS or MODULE:CLASS"
        )


def _added(found: NamedOptions, item: Any) -> Any:  # noqa: ANN401 - whatever a user writes
    """Replace the class of a file in ``HOOK=METHOD.TERM`` by its name."""
    hook, sign, rest = item.partition("=") if isinstance(item, str) else ("", "", "")
    if not sign or not _FILE.fullmatch(rest):
        return item
    place, dot, term = rest.rpartition(".") if hook.strip() == "local_loss" else (rest, "", "")
    return f"{hook}={found.name('method', place)}{dot}{term}"


def _list(given: Any) -> list[Any]:  # noqa: ANN401 - whatever a user writes
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _hooks_of(plugin: type) -> dict[str, dict[str, Any]]:
    """Return the marked methods of a class, {hook: options of its mark}."""
    methods = inspect.getmembers(plugin, inspect.isroutine)
    return {name: m.protofl_impl for name, m in methods if hasattr(m, "protofl_impl")}


def _only(instance: Any) -> type:  # noqa: ANN401 - an instance of any plugin
    """Return a class whose only instance is this one, with its attributes as class attributes."""
    cls, made = type(instance), lambda cls: instance
    about = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__new__": made}
    return type(cls.__name__, (cls,), {**vars(instance), **about})


def installed_name(kind: str, plugin: type) -> str:
    """Return the name under which a class is installed; empty if it is not."""
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    return next((p.name for p in Registry().plugins(kind) if p.target == target), "")


def plain_name(plugin: type) -> str:
    """Return the plugin name of a class: ``PrototypeMean`` as ``prototype-mean``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", plugin.__name__)
    return words.lower().strip("_-")


def kind_of(plugin: type) -> str:
    """Return the kind whose hooks a class implements.

    Raises:
        UsageError: It implements hooks of none, or of several.
    """
    marked = _hooks_of(plugin)
    wraps = any(options.get("wrapper") for options in marked.values())
    wraps |= bool({*marked} & ({*spec_hooks("wrapper")} - {*spec_hooks("method")}))
    wraps |= getattr(plugin, "attack", False)
    if wraps and {*marked} <= {*spec_hooks("wrapper")}:
        return "wrapper"
    kinds = [k for k in KINDS if k != "wrapper" and {*marked} & {*spec_hooks(k)}]
    if len(kinds) != 1:
        what = "no hook" if not kinds else f"hooks of several kinds: {', '.join(kinds)}"
        raise UsageError(
            f"{plugin.__name__} has {what}",
            do="say which kind it is: protofl check KIND/MODULE:CLASS",
        )
    return kinds[0]

"""Discovery: plugins by entry points, one group per kind; a run loads only what it uses."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pluggy

from protofl.errors import Clash, ProtoflError, UsageError, unknown
from protofl.hookspecs.version import HOOKSPEC_VERSION, parse_version, serves

KINDS = {
    "method": ("protofl.methods", "protofl.hookspecs.method:MethodSpec"),
    "recipe": ("protofl.recipes", "protofl.hookspecs.parts:RecipeSpec"),
    "model-group": ("protofl.model_groups", "protofl.hookspecs.parts:ModelGroupSpec"),
    "partitioner": ("protofl.partitioners", "protofl.hookspecs.parts:PartitionerSpec"),
    "dataset": ("protofl.datasets", "protofl.hookspecs.parts:DatasetSpec"),
    "generator": ("protofl.generators", "protofl.hookspecs.parts:GeneratorSpec"),
    "wrapper": ("protofl.wrappers", "protofl.hookspecs.method:WrapperSpec"),
    "engine": ("protofl.engines", "protofl.hosts.specs:EngineSpec"),
    "backend": ("protofl.backends", "protofl.hosts.specs:BackendSpec"),
}
"""Each kind's entry-point group and hook specification."""

NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Plugin:
    """An installed plugin, known without importing it."""

    kind: str
    name: str
    version: str
    distribution: str
    target: str
    loaded: type | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """``KIND/NAME``."""
        return f"{self.kind}/{self.name}"


class Registry:
    """The plugins that are installed on this machine.

    Args:
        block: Plugins to leave out: ``NAME``, ``KIND/NAME``, either with ``@DISTRIBUTION``.
            Those of the environment variable ``PROTOFL_BLOCK`` (comma-separated) are added.
        extra: Classes given in the program rather than installed, {(kind, name): class}.
    """

    def __init__(
        self,
        block: Iterable[str] = (),
        extra: Mapping[tuple[str, str], type] | None = None,
    ) -> None:
        environment = os.environ.get("PROTOFL_BLOCK", "").split(",")
        self.block = [b.strip() for b in [*block, *environment] if b.strip()]
        self.extra = dict(extra or {})
        self._found: dict[str, list[Plugin]] = {}

    def plugins(self, kind: str | None = None) -> list[Plugin]:
        """All plugins of a kind, or of all kinds, by kind and name; clashes appear twice."""
        kinds = [kind] if kind else list(KINDS)
        return [plugin for k in kinds for plugin in self._of_kind(k)]

    def find(self, kind: str, name: str) -> Plugin:
        """The plugin of that name.

        Raises:
            UsageError: There is none, or two distributions have one of that name.
        """
        plugins = [p for p in self._of_kind(kind) if p.name == name]
        if not plugins:
            blocked = any(p.name == name for p in self._of_kind(kind, blocked=True))
            if blocked:
                raise UsageError(
                    f"{kind} {name!r} is blocked",
                    do="take it out of --block and of the environment variable PROTOFL_BLOCK",
                )
            names = {p.name for p in self._of_kind(kind) + self._rivals(kind)}
            raise unknown(kind, name, names, f"see: protofl list-plugins --kind {kind}")
        if len(plugins) > 1:
            owners = [p.distribution for p in plugins]
            raise Clash(
                f"{kind} {name!r} is provided by two distributions: {' and '.join(owners)}",
                "; ".join(f"{p.distribution} {p.version} has {p.target}" for p in plugins),
                do=f"block one: --block {name}@{owners[-1]}, or PROTOFL_BLOCK={name}@{owners[-1]}",
            )
        self._check_rivals(plugins[0])
        return plugins[0]

    def _rivals(self, kind: str) -> list[Plugin]:
        """Plugins of the kind with which names are shared: ``protofl run`` takes either."""
        other = {"method": "recipe", "recipe": "method"}.get(kind)
        return self._of_kind(other) if other else []

    def _check_rivals(self, plugin: Plugin) -> None:
        for rival in self._rivals(plugin.kind):
            if rival.name == plugin.name:
                one, two = sorted((plugin, rival), key=lambda p: p.kind)
                raise Clash(
                    f"{plugin.name!r} is a {one.kind} of {one.distribution} and a {two.kind} of "
                    f"{two.distribution}",
                    do=f"block one: --block {two.label}@{two.distribution}, or "
                    f"PROTOFL_BLOCK={two.label}@{two.distribution}",
                )

    def load(self, kind: str, name: str) -> type:
        """The plugin's class, checked against its kind's hook specification.

        Raises:
            UsageError: It does not exist, can't be imported, or breaks the hooks' rules.
        """
        plugin = self.find(kind, name)
        loaded = _imported(plugin) if plugin.loaded is None else plugin.loaded
        check_version(plugin, loaded)
        try:
            check_class(kind, name, loaded)
        except UsageError as error:
            if plugin.loaded is None:
                error.what += f" ({plugin.distribution} {plugin.version})"
            raise
        return loaded

    def status(self, plugin: Plugin) -> tuple[str, list[str]]:
        """``ok`` or what is wrong in one line, and the hooks that the plugin implements."""
        try:
            found = self.load(plugin.kind, plugin.name)
        except ProtoflError as error:
            word = "clash" if isinstance(error, Clash) else "broken"
            return f"{word}: {error.what}", []
        return "ok", hooks_of(plugin.kind, found)

    def _of_kind(self, kind: str, blocked: bool = False) -> list[Plugin]:
        if kind not in self._found:
            self._found[kind] = self._scan(kind)
        return [p for p in self._found[kind] if blocked or not self._is_blocked(p)]

    def _scan(self, kind: str) -> list[Plugin]:
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        found = {
            Plugin(kind, entry.name, *_origin(entry), entry.value)
            for entry in self._installed.select(group=KINDS[kind][0])
        }
        found |= {
            Plugin(kind, name, "?", "this program", f"{c.__module__}:{c.__qualname__}", c)
            for (k, name), c in self.extra.items()
            if k == kind
        }
        return sorted(found, key=lambda p: (p.name, p.distribution))

    @cached_property
    def _installed(self) -> Any:  # noqa: ANN401 - Python 3.10 has a class of its own for them
        """All entry points; every distribution's file is read once for all kinds."""
        return importlib.metadata.entry_points()

    def _is_blocked(self, plugin: Plugin) -> bool:
        for pattern in self.block:
            name, _, distribution = pattern.partition("@")
            if name in (plugin.name, plugin.label) and distribution in ("", plugin.distribution):
                return True
        return False


def _imported(plugin: Plugin) -> Any:  # noqa: ANN401 - it may be anything
    """What a plugin's entry point names.

    Raises:
        UsageError: It can't be imported.
    """
    try:
        if plugin.kind == "recipe":
            from protofl.plan.recipes import load_recipe

            return load_recipe(plugin)
        module, _, attributes = plugin.target.partition(":")
        found = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{plugin.label} of {plugin.distribution} {plugin.version} is broken: "
            f"{type(error).__name__}: {error}",
            f"raised at {last_place(error)}, while {plugin.target} was imported",
            f"mend or remove {plugin.distribution}, or run without {plugin.name!r}; "
            "--debug shows where it fails",
        ) from error
    return found


def last_place(error: BaseException) -> str:
    """``FILE:LINE`` where an error came up."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def check_version(plugin: Plugin, loaded: Any) -> None:  # noqa: ANN401 - it may be anything
    """Whether the hooks of this protofl do for a plugin.

    Raises:
        UsageError: It requires others, or says so in a form that nobody reads.
    """
    required = getattr(loaded, "requires_hookspec", None)
    if required is None:
        return
    owner = f"{plugin.distribution} {plugin.version}"
    wanted, have = parse_version(required), parse_version(HOOKSPEC_VERSION) or (0, 0)
    if wanted is None:
        raise UsageError(
            f"{plugin.label} of {owner}: requires_hookspec is {required!r}",
            "a version of the hooks is MAJOR.MINOR in quotes",
            f'write requires_hookspec = "{HOOKSPEC_VERSION}"',
        )
    if serves(wanted, have):
        return
    newer = wanted > have
    release = importlib.metadata.version("protofl")
    raise UsageError(
        f"{plugin.label} of {owner} needs version {required} of the hooks",
        f"protofl {release} has version {HOOKSPEC_VERSION}",
        f"update protofl (pip install -U protofl), or install an older {plugin.distribution}"
        if newer
        else f"update {plugin.distribution}: it was written for an older protofl",
    )


def _origin(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Version and name of the distribution that has an entry point."""
    if entry.dist is None:
        return "?", "?"
    about = entry.dist.metadata  # read once: each of the two would read the file again
    return about["Version"], about["Name"]


def spec_of(kind: str) -> type:
    """The class that specifies the hooks of a kind."""
    module, _, name = KINDS[kind][1].partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


@lru_cache
def spec_hooks(kind: str) -> Mapping[str, list[str]]:
    """The hooks of a kind and their arguments."""
    found = {
        name: [a for a in inspect.signature(function).parameters if a != "self"]
        for name, function in vars(spec_of(kind)).items()
        if hasattr(function, "protofl_spec")
    }
    return MappingProxyType(found)


def hooks_of(kind: str, plugin: type) -> list[str]:
    """The hooks that a plugin implements, in the specification's order."""
    return [h for h in spec_hooks(kind) if hasattr(getattr(plugin, h, None), "protofl_impl")]


def check_class(kind: str, name: str, plugin: Any) -> None:  # noqa: ANN401 - it may be anything
    """Hold a plugin's class against its kind's specification.

    Raises:
        UsageError: It is no class, a hook lacks ``@hookimpl`` or takes an unknown argument, a
            method marked as hook is none, or its name or ``Config`` breaks the rules.
    """
    from protofl.hookspecs.config import Config  # pydantic is slow to import, and names need none

    label = f"{kind}/{name}"
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{label}: a plugin's name is lower-case letters, digits, '-' and '_', not {name!r}"
        )
    if not isinstance(plugin, type):
        raise UsageError(
            f"{label}: the entry point names {plugin!r}", do="it must name a class with hooks"
        )
    config = getattr(plugin, "Config", Config)
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise UsageError(f"{label}: its Config is no protofl.Config", do="derive it: pf.Config")
    specs = spec_hooks(kind)
    for hook in specs:
        if hasattr(plugin, hook) and not inspect.isroutine(getattr(plugin, hook)):
            raise UsageError(
                f"{label}: {hook} is no function and would be ignored",
                do=f"write @pf.hookimpl and def {hook}, or choose another name",
            )
    for attribute, function in inspect.getmembers(plugin, inspect.isroutine):
        marked, place = hasattr(function, "protofl_impl"), _place_of(function)
        if attribute in specs and not marked:
            raise UsageError(
                f"{label}: {attribute} lacks @hookimpl and would be ignored",
                f"it is defined at {place}",
                f"write @pf.hookimpl above def {attribute}",
            )
        if marked and attribute not in specs:
            raise unknown(f"hook of {label}:", attribute, specs, f"rename it at {place}")
        if marked:
            _check_arguments(f"{label}.{attribute}", function, specs[attribute], place)


def _check_arguments(label: str, function: Any, known: list[str], place: str) -> None:  # noqa: ANN401
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument == "self":
            continue
        if argument not in known:
            raise unknown(f"argument of {label}:", argument, known, f"rename it at {place}")
        if parameter.default is not parameter.empty:
            raise UsageError(
                f"{label}: {argument} has a default and would never be given",
                f"it is defined at {place}",
                f"leave the default out: {argument}",
            )


def _place_of(function: Any) -> str:  # noqa: ANN401 - a function or a descriptor of one
    """``FILE:LINE`` of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else "a place unknown"


class Caller:
    """A single plugin of a kind that is not a method, and its hooks called through pluggy."""

    def __init__(self, kind: str, name: str, plugin: type) -> None:
        self.kind, self.name, self.plugin = kind, name, plugin
        self.instance = plugin()
        self._manager = pluggy.PluginManager("protofl")
        self._manager.add_hookspecs(spec_of(kind))
        self._manager.register(self.instance, name=name)
        self._manager.check_pending()
        self.hooks = hooks_of(kind, plugin)

    def __call__(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - as the hook says
        """Call one hook; None where the plugin does not implement it."""
        return getattr(self._manager.hook, hook)(**arguments)

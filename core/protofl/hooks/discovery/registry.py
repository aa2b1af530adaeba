"""Registry: plugins by entry points, one group per kind; a run imports only its own plugins."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, lru_cache
from importlib.metadata import EntryPoint
from typing import Any

from protofl.errors import (
    Blocked,
    Clash,
    ProtoflError,
    Unknown,
    UsageError,
    ends_hook,
    error_text,
    unknown,
)
from protofl.hooks.discovery.kinds import (
    KINDS,
    LOADERS,
    Plugin,
    check_class,
    hooks_of,
)
from protofl.hooks.discovery.satellites import how_to_install
from protofl.system.consent import check_recorded
from protofl.system.sources import error_location, fingerprint


class Registry:
    """The plugins that are installed on this machine.

    Args:
        block: Plugins to leave out: ``NAME``, ``KIND/NAME``, either with ``@DISTRIBUTION``.
            Those of the environment variable ``PROTOFL_BLOCK`` (comma-separated) are added.
        extra: Classes given in the program rather than installed, {(kind, name): class}.
        classes: Places of further classes, {KIND/NAME: FILE.py:CLASS or MODULE:CLASS}.

    Raises:
        UsageError: A place has no consent (`protofl.system.consent`), or ``block`` names no
            plugin.
    """

    def __init__(
        self,
        block: Iterable[str] = (),
        extra: Mapping[tuple[str, str], type] | None = None,
        classes: Mapping[str, str] | None = None,
    ) -> None:
        self.block = _blocked(block)
        self.extra = dict(extra or {})
        self._places = dict(classes or {})
        extra_labels = {f"{kind}/{name}" for kind, name in self.extra}
        named = {k: at for k, at in self._places.items() if k not in extra_labels}
        check_recorded({"classes": named}, "the options of the run")
        self._found: dict[str, list[Plugin]] = {}
        self._loaded: dict[tuple[str, str], type] = {}
        self._origin = cache(_origin)  # a distribution's files are read once
        self._check_blocked(block)

    @classmethod
    def of(
        cls, options: Mapping[str, Any], extra: Mapping[tuple[str, str], type] | None = None
    ) -> Registry:
        """Return the plugins that a run can use.

        Args:
            options: The options of the run.
            extra: Classes given in the program, as above.
        """
        return cls(options.get("block") or (), extra, options.get("classes"))

    def plugins(self, kind: str | None = None) -> list[Plugin]:
        """Return all plugins of a kind, or of all kinds, by kind and name; clashes appear twice."""
        return [plugin for k in ([kind] if kind else KINDS) for plugin in self._of_kind(k)]

    def find(self, kind: str, name: str) -> Plugin:
        """Return the plugin of that name.

        Raises:
            UsageError: The name is unknown, or two distributions have a plugin of that name.
        """
        plugins = [p for p in self._of_kind(kind) if p.name == name]
        if not plugins:
            if any(p.name == name for p in self._of_kind(kind, blocked=True)):
                raise Blocked(
                    f"{kind} {name!r} is blocked",
                    do="take it out of --block and of the environment variable PROTOFL_BLOCK",
                )
            names = {p.name for p in self._of_kind(kind)}
            if kind == "dataset" and (ending := _file_ending(name)):
                if table := TABLES.get(ending):
                    raise Unknown(
                        f"unknown dataset {name!r}",
                        do=f"write {table}:{name} --set dataset.label=COLUMN",
                    )
                raise Unknown(
                    f"unknown dataset {name!r}: {ending} files are not read",
                    "data sets in files: npz:FILE, csv:FILE, parquet:FILE, folder:DIR (images), "
                    "domains:DIR",
                    "save its arrays with numpy.savez_compressed, and give npz:FILE",
                )
            file = f"write npz:{name}; " if kind == "dataset" and name.endswith(".npz") else ""
            do = f"{file}{how_to_install(name)}see: protofl list-plugins --kind {kind}"
            raise unknown(kind, name, names, do)
        first, *others = plugins
        for other in others:
            out = f"{name}@{other.distribution}"
            both = f"--block {out}, or PROTOFL_BLOCK={out}"
            raise Clash(
                f"{name!r} is a {first.kind} of {first.distribution} and a {other.kind} of "
                f"{other.distribution}",
                f"{first.distribution} has {first.target}; {other.distribution} has {other.target}",
                do=f"block one: {f'PROTOFL_BLOCK={out}' if kind == 'command' else both}",
            )
        return plugins[0]

    def load(self, kind: str, name: str) -> type:
        """Return the plugin's class, checked against the hook specification of its kind.

        Raises:
            UsageError: The plugin does not exist, can't be imported, or breaks the hooks' rules.
        """
        if (kind, name) in self._loaded:
            return self._loaded[kind, name]
        plugin = self.find(kind, name)
        loaded = self._imported(plugin) if plugin.loaded is None else plugin.loaded
        try:
            self._check_class(plugin, loaded)
        except BaseException as error:  # attributes of a class may raise anything
            if isinstance(error, ProtoflError) or not ends_hook(error):
                raise
            raise _broken(plugin, error, "checked") from error
        return self._loaded.setdefault((kind, name), loaded)

    @staticmethod
    def _check_class(plugin: Plugin, loaded: Any) -> None:  # noqa: ANN401 - it may be anything
        try:
            check_class(plugin.kind, plugin.name, loaded)
        except UsageError as error:
            if plugin.loaded is None:
                error.what += f" ({plugin.distribution} {plugin.version})"
            raise

    def status(self, plugin: Plugin) -> tuple[str, list[str]]:
        """Return ``ok`` or the error in one line, and the hooks that the plugin implements."""
        try:
            plugin_class = self.load(plugin.kind, plugin.name)
        except ProtoflError as error:
            word = "clash" if isinstance(error, Clash) else "broken"
            return f"{word}: {error.what}", []
        return "ok", hooks_of(plugin.kind, plugin_class)

    def _of_kind(self, kind: str, blocked: bool = False) -> list[Plugin]:
        if kind not in self._found:
            self._found[kind] = self._scan(kind)
        return [p for p in self._found[kind] if blocked or _names(p).isdisjoint(self.block)]

    def _scan(self, kind: str) -> list[Plugin]:
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        plugins = {
            Plugin(kind, entry.name, *self._origin(entry.dist), entry.value)
            for entry in self._installed.select(group=KINDS[kind].group)
        }
        classes = {name: c for (k, name), c in self.extra.items() if k == kind}
        for label, place in self._places.items():
            k, _, name = label.partition("/")
            if k == kind and name not in classes:
                from protofl.system.class_places import load

                classes[name] = load(place, label)
        plugins |= {
            Plugin(kind, n, fingerprint(c), "this program", f"{c.__module__}:{c.__qualname__}", c)
            for n, c in classes.items()
        }
        return sorted(plugins, key=lambda p: (p.name, p.distribution))

    @cached_property
    def _installed(self) -> Any:  # noqa: ANN401 - Python 3.11 has a class of its own for them
        """The entry points of all distributions, read once for all kinds."""
        return importlib.metadata.entry_points()

    def _imported(self, plugin: Plugin) -> Any:  # noqa: ANN401 - it may be anything
        """Import the class or file of a plugin's entry point.

        Raises:
            UsageError: The import fails.
        """
        try:
            for loader in self._installed.select(group=LOADERS, name=plugin.kind):
                return loader.load()(plugin)
            return EntryPoint(name="", value=plugin.target, group="").load()
        except BaseException as error:
            if not ends_hook(error):
                raise
            raise _broken(plugin, error, "imported") from error

    def _check_blocked(self, block: Iterable[str]) -> None:
        """Check that ``--block`` names plugins; PROTOFL_BLOCK may name absent ones."""
        names = {n for k in KINDS if block for p in self._of_kind(k, True) for n in _names(p)}
        for blocked in (label.strip() for label in block):
            if blocked and blocked not in names:
                raise unknown("plugin in --block", blocked, names, "see: protofl list-plugins")


def installed(kind: str, block: Iterable[str] = ()) -> list[Plugin]:
    """Return the installed plugins of a kind, where a run's own classes do not matter.

    Args:
        kind: The kind.
        block: Plugins to leave out, as `Registry` takes them.
    """
    points = importlib.metadata.entry_points(group=KINDS[kind].group)
    plugins = {Plugin(kind, entry.name, *_origin(entry.dist), entry.value) for entry in points}
    kept = (plugin for plugin in plugins if _names(plugin).isdisjoint(_blocked(block)))
    return sorted(kept, key=lambda p: (p.name, p.distribution))


def _blocked(block: Iterable[str]) -> list[str]:
    """Return blocked plugins, those of the environment variable among them."""
    environment = os.environ.get("PROTOFL_BLOCK", "").split(",")
    return [b.strip() for b in [*block, *environment] if b.strip()]


def _broken(plugin: Plugin, error: BaseException, when: str) -> UsageError:
    return UsageError(
        f"{plugin.label} of {plugin.distribution} {plugin.version} is broken: {error_text(error)}",
        f"raised at {error_location(error)}, while {plugin.target} was {when}",
        f"mend or remove {plugin.distribution}, or run without {plugin.name!r}; "
        "--debug shows where it fails",
    )


FILES = (
    "csv", "tsv", "parquet", "txt", "npy", "json", "jsonl", "arrow", "feather", "h5", "hdf5", "mat",
    "pt", "pth", "pkl", "pickle", "xlsx", "xls", "zip", "tar", "gz", "tgz", "tfrecord", "arff",
    "dat", "tif", "tiff", "jpg", "png",
)  # fmt: skip
"""Endings and names of files that users have, and that no data set has the name of."""

TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
"""{ending of a file: data set that reads it}."""


def _file_ending(name: str) -> str:
    """Return the ending of a file that is given as a data set, ``csv`` or ``my.csv``, or ""."""
    ending = name.lower().rpartition(".")[2]
    return f".{ending}" if ending in FILES else ""


def _names(plugin: Plugin) -> set[str]:
    """Return the names by which a plugin can be blocked."""
    names = (plugin.name, plugin.label)
    return {pattern for n in names for pattern in (n, f"{n}@{plugin.distribution}")}


@lru_cache(maxsize=256)  # a distribution with many plugins has one object, whose file is read
def _origin(distribution: importlib.metadata.Distribution | None) -> tuple[str, str]:
    """Return version and name of a distribution."""
    if distribution is None:
        return "?", "?"
    try:
        about = distribution.metadata
        return str(about["Version"] or "?"), str(about["Name"] or "?")
    except Exception:  # the distribution is damaged
        return "?", "?"

"""The kinds of plugins: entry-point groups, hooks, and checks of a plugin's class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.hooks.hookspecs import method, resources, rounds
from protofl.hooks.wire.keys import Keys, fault_of


@dataclass(frozen=True)
class Kind:
    """A kind of plugin.

    Attributes:
        group: The entry-point group.
        spec: The class that specifies its hooks.
    """

    group: str
    spec: type


KINDS = {
    "method": Kind("protofl.methods", method.MethodSpec),
    "reproduction": Kind("protofl.reproductions", resources.ReproductionSpec),
    "model-group": Kind("protofl.model_groups", resources.ModelGroupSpec),
    "partitioner": Kind("protofl.partitioners", resources.PartitionerSpec),
    "dataset": Kind("protofl.datasets", resources.DatasetSpec),
    "generator": Kind("protofl.generators", resources.GeneratorSpec),
    "payload-transform": Kind("protofl.payload_transforms", method.PayloadTransformSpec),
    "metric": Kind("protofl.metrics", rounds.MetricSpec),
    "client-sampler": Kind("protofl.client_samplers", rounds.ClientSamplerSpec),
    "device-model": Kind("protofl.device_models", rounds.DeviceModelSpec),
    "schedule": Kind("protofl.schedules", rounds.ScheduleSpec),
    "tracker": Kind("protofl.trackers", rounds.TrackerSpec),
    "engine": Kind("protofl.engines", resources.EngineSpec),
    "backend": Kind("protofl.backends", resources.BackendSpec),
    "command": Kind("protofl.commands", resources.CommandSpec),
}

LOADERS = "protofl.loaders"
"""The entry-point group of the loaders of reproductions, which are files."""


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


@lru_cache
def spec_hooks(kind: str) -> Mapping[str, list[str]]:
    """Return the hooks of a kind and their arguments."""
    hooks = {
        name: [a for a in inspect.signature(function).parameters if a != "self"]
        for name, function in vars(KINDS[kind].spec).items()
        if hasattr(function, "protofl_spec")
    }
    return MappingProxyType(hooks)


def hooks_of(kind: str, plugin: type) -> list[str]:
    """Return the hooks that a plugin implements, in the specification's order."""
    return [h for h in spec_hooks(kind) if hasattr(getattr(plugin, h, None), "protofl_impl")]


def after_batch_if(plugin: type) -> Mapping[str, Any]:
    """Return ``after_batch_if`` of the class that defines a method's ``after_batch``.

    A subclass that overrides the hook says anew when it is needed.
    """
    owners = [vars(each) for each in plugin.__mro__ if "after_batch" in vars(each)]
    return owners[0].get("after_batch_if", {}) if owners else {}


def check_declared(label: str, plugin: type) -> None:
    """Check a plugin's declarations and constructor.

    Args:
        label: KIND/NAME.
        plugin: The class.

    Raises:
        UsageError: ``terms``, ``uploads`` or ``downloads`` is not a mapping of names to texts (for
            a key of payloads, to a text or a `Key`), a key has another shape than in another
            declaration, or the constructor has a required argument.
    """
    for attribute in ("terms", "uploads", "downloads"):
        declarations = getattr(plugin, attribute, None)
        if not (declarations is None or isinstance(declarations, Mapping)):
            raise UsageError(
                f"{label}: {attribute} is a {type(declarations).__name__}: {declarations!r}",
                "expected a mapping of names to descriptions",
                f"write {attribute} = {{'NAME': 'what it is'}}",
            )
        for name, key in (declarations or {}).items() if attribute != "terms" else ():
            if fault := fault_of(name, key):
                raise UsageError(
                    f"{label}: {attribute} declares {name!r} as {fault}",
                    "a key of payloads is declared with a text or with pf.Key",
                    f"write {name!r}: pf.Key('[n, K]', 'what it is and reveals', by_class=True)",
                )
    Keys.of({label: plugin})
    for name, parameter in inspect.signature(plugin).parameters.items():
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not several:
            raise UsageError(
                f"{label}: its __init__ has the required argument {name!r}",
                "each process creates the plugin without arguments",
                f"make {name!r} an option, a field of a nested Config(pf.Config): config.{name}",
            )


NAME = re.compile(r"[a-z][a-z0-9_-]*")


def check_class(kind: str, name: str, plugin: Any) -> None:  # noqa: ANN401 - it may be anything
    """Check a plugin's class against the hooks of its kind; a command is a function or an app.

    Raises:
        UsageError: The plugin is not a class, a hook lacks ``@hookimpl`` or takes an unknown
            argument, a method marked as hook or an option in ``after_batch_if`` is unknown, or its
            name or ``Config`` is invalid.
    """
    from protofl.system.options.plugin_options import Config

    label = f"{kind}/{name}"
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{label}: a plugin's name is lower-case letters, digits, '-' and '_', not {name!r}"
        )
    if kind == "command":
        if isinstance(plugin, type) or not callable(plugin):
            raise UsageError(
                f"{label}: the entry point names {plugin!r}",
                do="it must name a function or a typer.Typer",
            )
        return
    if not isinstance(plugin, type):
        raise UsageError(
            f"{label}: the entry point names {plugin!r}", do="it must name a class with hooks"
        )
    config = getattr(plugin, "Config", Config)
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise UsageError(f"{label}: its Config is not a protofl.Config", do="derive it: pf.Config")
    for attribute, do in (
        ("__doc__", "write a docstring"),
        ("argument", 'write argument = "NAME"'),
    ):
        value = getattr(plugin, attribute, None)
        if not (value is None or isinstance(value, str)):
            raise UsageError(f"{label}: its {attribute} is {value!r}, not a text", do=do)
    for option in after_batch_if(plugin):
        if option not in config.model_fields:
            raise unknown(f"option in after_batch_if of {label}:", option, config.model_fields)
    check_declared(label, plugin)
    specs = spec_hooks(kind)
    for hook in specs:
        if hasattr(plugin, hook) and not inspect.isroutine(getattr(plugin, hook)):
            raise UsageError(
                f"{label}: {hook} is not a function and would be ignored",
                do=f"write @pf.hookimpl and def {hook}, or choose another name",
            )
    for attribute, function in inspect.getmembers(plugin, inspect.isroutine):
        _check_hook(kind, label, attribute, function)


def _check_hook(kind: str, label: str, attribute: str, function: Any) -> None:  # noqa: ANN401
    specs, marks = spec_hooks(kind), getattr(function, "protofl_impl", None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else "an unknown place"
    if marks is None:
        if attribute in specs:
            raise UsageError(
                f"{label}: {attribute} lacks @hookimpl and would be ignored",
                f"it is defined at {place}",
                f"write @pf.hookimpl above def {attribute}",
            )
        return
    if attribute not in specs:
        raise unknown(f"hook of {label}:", attribute, specs, f"rename it at {place}")
    if attribute not in spec_hooks("method") and (marks["wrapper"] or marks["hookwrapper"]):
        raise UsageError(
            f"{label}: {attribute} is marked as a wrapper, and has no provider to wrap",
            f"it is defined at {place}",
            "write @pf.hookimpl without wrapper=True",
        )
    label, known = f"{label}.{attribute}", specs[attribute]
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument == "self":
            continue
        if argument not in known:
            raise unknown(f"argument of {label}:", argument, known, f"rename it at {place}")
        if parameter.default is not parameter.empty:
            raise UsageError(
                f"{label}: {argument} has a default, so pluggy would not pass it",
                f"it is defined at {place}",
                f"leave the default out: {argument}",
            )

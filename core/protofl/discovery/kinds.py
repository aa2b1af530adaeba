"""The kinds of plugins: where each is found, and the hooks that it may implement."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of plugin; what it names is imported when a plugin of the kind is.

    Attributes:
        group: The entry-point group.
        spec: The class that specifies its hooks, ``MODULE:CLASS``.
        loader: What makes a class of an entry point that names none, ``MODULE:FUNCTION``.
    """

    group: str
    spec: str
    loader: str = ""


KINDS = {
    "method": Kind("protofl.methods", "protofl.hookspecs.method:MethodSpec"),
    "recipe": Kind(
        "protofl.recipes",
        "protofl.hookspecs.resources:RecipeSpec",
        loader="protofl.request.recipes:load_recipe",
    ),
    "study": Kind(
        "protofl.studies",
        "protofl.hookspecs.resources:StudySpec",
        loader="protofl.studies.finding:load_collection",
    ),
    "model-group": Kind("protofl.model_groups", "protofl.hookspecs.resources:ModelGroupSpec"),
    "partitioner": Kind("protofl.partitioners", "protofl.hookspecs.resources:PartitionerSpec"),
    "dataset": Kind("protofl.datasets", "protofl.hookspecs.resources:DatasetSpec"),
    "generator": Kind("protofl.generators", "protofl.hookspecs.resources:GeneratorSpec"),
    "wrapper": Kind("protofl.wrappers", "protofl.hookspecs.method:WrapperSpec"),
    "metric": Kind("protofl.metrics", "protofl.metrics.specs:MetricSpec"),
    "selection": Kind("protofl.selections", "protofl.participation.specs:SelectionSpec"),
    "world": Kind("protofl.worlds", "protofl.participation.specs:WorldSpec"),
    "tracker": Kind("protofl.trackers", "protofl.trackers.specs:TrackerSpec"),
    "engine": Kind("protofl.engines", "protofl.hosts.specs:EngineSpec"),
    "backend": Kind("protofl.backends", "protofl.hosts.specs:BackendSpec"),
}

COMPOSED = ("method", "wrapper")
"""Kinds whose plugins are composed; of each of the others a run has at most one plugin."""


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


def named(target: str) -> Any:  # noqa: ANN401 - it may be anything
    """What ``MODULE:ATTRIBUTE`` names."""
    return EntryPoint(name="", value=target, group="").load()


def spec_of(kind: str) -> type:
    """The class that specifies the hooks of a kind."""
    return named(KINDS[kind].spec)  # type: ignore[no-any-return]


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

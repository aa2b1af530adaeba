"""The kinds of plugins: where each is found, and the hooks that it may implement."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from protofl.hookspecs import execution, method, resources, rounds


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
    "recipe": Kind("protofl.recipes", resources.RecipeSpec),
    "study": Kind("protofl.studies", resources.StudySpec),
    "model-group": Kind("protofl.model_groups", resources.ModelGroupSpec),
    "partitioner": Kind("protofl.partitioners", resources.PartitionerSpec),
    "dataset": Kind("protofl.datasets", resources.DatasetSpec),
    "generator": Kind("protofl.generators", resources.GeneratorSpec),
    "wrapper": Kind("protofl.wrappers", method.WrapperSpec),
    "metric": Kind("protofl.metrics", rounds.MetricSpec),
    "selection": Kind("protofl.selections", rounds.SelectionSpec),
    "world": Kind("protofl.worlds", rounds.WorldSpec),
    "tracker": Kind("protofl.trackers", rounds.TrackerSpec),
    "engine": Kind("protofl.engines", execution.EngineSpec),
    "backend": Kind("protofl.backends", execution.BackendSpec),
}

LOADERS = "protofl.loaders"
"""The entry-point group of what loads the plugins of a kind that are files, not classes: recipes
and studies."""

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


@lru_cache
def spec_hooks(kind: str) -> Mapping[str, list[str]]:
    """The hooks of a kind and their arguments."""
    found = {
        name: [a for a in inspect.signature(function).parameters if a != "self"]
        for name, function in vars(KINDS[kind].spec).items()
        if hasattr(function, "protofl_spec")
    }
    return MappingProxyType(found)


def hooks_of(kind: str, plugin: type) -> list[str]:
    """The hooks that a plugin implements, in the specification's order."""
    return [h for h in spec_hooks(kind) if hasattr(getattr(plugin, h, None), "protofl_impl")]

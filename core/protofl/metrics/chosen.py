"""The metrics that a run has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofl.discovery.registry import Registry
from protofl.errors import UsageError
from protofl.plugin.choice import Choice, choose
from protofl.plugin.composition import Composition


def chosen_metrics(
    registry: Registry, settings: Mapping[str, Any], composition: Composition
) -> dict[str, Choice]:
    """The metrics of ``--metrics``, with their own options, by ``metric/NAME``.

    Args:
        registry: Where they are found.
        settings: The options of a run.
        composition: Its methods and wrappers.

    Raises:
        UsageError: There is none of a name, or a method of the run has it too.
    """
    names, options = settings["metrics"], settings["options"]
    if both := sorted(composition.members.keys() & {*names}):
        kind = composition.members[both[0]].kind
        raise UsageError(
            f"--metrics {both[0]}: the run has a {kind} of that name",
            do=f"block the metric (--block metric/{both[0]}), or leave it out",
        )
    found = [choose(registry, "metric", name, options.get(name)) for name in names]
    return {f"metric/{metric.name}": metric for metric in found}


def metrics_in(choices: Mapping[str, Choice]) -> list[Choice]:
    """The metrics among a run's plugins."""
    return [choice for choice in choices.values() if choice.kind == "metric"]

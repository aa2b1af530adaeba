"""Tasks other than classification: which plugins and options work, and the metrics they add."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from protofl.data.dataset import Dataset
from protofl.data.task_names import TASKS
from protofl.data.tasks import Task
from protofl.errors import ProtoflError, Refused, UsageError
from protofl.federation.plan.run_data import takes
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose, plugins_of_kinds
from protofl.system.options.settings import Settings


def tasks_of(plugin: type, kind: str) -> tuple[str, ...]:
    """Return the tasks that a plugin declares (``tasks``).

    A method or metric without a declaration is for classification. A transform is for all tasks,
    unless it changes labels. A model group is for all but language models, whose nets have one
    part.

    Args:
        plugin: The plugin's class.
        kind: Its kind.
    """
    if kind == "model-group":
        return tuple(getattr(plugin, "tasks", Task.OF_HEADS))
    changes = kind != "payload-transform" or hasattr(plugin, "train_labels")
    return tuple(getattr(plugin, "tasks", ("classification",) if changes else TASKS))


IMBALANCED = 2
"""The most frequent class of imbalanced data has this many times the samples of the rarest."""


def imbalance(data: Dataset) -> str:
    """Return a note about imbalanced classes; empty for others, and for data elsewhere."""
    if not data.task.has_classes or data.elsewhere or data.y.is_meta:
        return ""
    counts = torch.bincount(data.y)
    order = [c for c in counts.argsort().tolist() if counts[c]]
    rarest, most = order[0], order[-1]
    if counts[most] < IMBALANCED * counts[rarest]:
        return ""
    each = " and ".join(f"{int(counts[c]):,} of {data.classes[c]}" for c in (most, rarest))
    return f"imbalanced classes, {each}: balanced accuracy stands beside accuracy"


def with_usual_metrics(
    settings: Settings, choices: Mapping[str, Choice], data: Dataset, registry: Registry
) -> tuple[Settings, dict[str, Choice]]:
    """Return the options and plugins of a run with the usual metrics of its task.

    They are the installed metrics whose ``usual_for`` is the task, or ``imbalanced classes``.

    Args:
        settings: The options of the run.
        choices: Its plugins.
        data: Its data.
        registry: Where plugins are found.
    """
    wanted = "imbalanced classes" if data.task.has_classes else data.task.name
    # Other owners do not tell the classes of their samples, which the metric counts.
    private = any(getattr(choice.plugin, "has_secrets", False) for choice in choices.values())
    if data.task.has_classes and (private or not imbalance(data)):
        return settings, {**choices}
    usual = [
        plugin.name
        for plugin in registry.plugins("metric")
        if getattr(_loaded(registry, "metric", plugin.name), "usual_for", "") == wanted
    ]
    new = [name for name in usual if name not in settings.metrics]
    more = {
        f"metric/{name}": choose(registry, "metric", name, settings.options.get(name))
        for name in new
    }
    metrics = [*settings.metrics, *new]
    return settings.model_copy(update={"metrics": metrics}), {**choices, **more}


def check_task(
    settings: Settings,
    composition: Composition,
    choices: Mapping[str, Choice],
    data: Dataset,
    registry: Registry,
) -> None:
    """Check that methods, transforms, metrics and options of a run work for its task.

    Raises:
        Refused: A method does not.
        UsageError: Another plugin or an option does not.
    """
    task, what = data.task, f"the data are for {data.task.name}"
    for member in (
        *composition.methods,
        *composition.transforms,
        *plugins_of_kinds(choices, "model-group", "metric"),
    ):
        if task.name in tasks_of(member.plugin, member.kind):
            continue
        able = _able(registry, member.kind, task.name)
        if member.kind == "model-group":
            able = [name for name in able if takes(registry, name, data.sample)]
        noun = member.kind.replace("-", " ")
        shown = f"{noun}s for {task.name}: {', '.join(able) or 'none is installed'}"
        if member.kind == "method":
            needs = "its losses or what it sends need one class for each sample"
            reason = f"{member.name} does not work for {task.name}: {needs}"
            raise Refused(
                f"{what}, and {reason}",
                shown,
                "choose one of them, or data with one class per sample",
                lacks="requirement",
                name=reason,
            )
        words = " and ".join(tasks_of(member.plugin, member.kind)) or "no task"
        do = "choose one of them" if member.kind == "model-group" else "leave it out"
        raise UsageError(f"{what}, and {member.name} is for {words}", shown, do)
    if task.has_classes:
        return
    refused = {
        "--observe": bool(settings.observe),
        "--record-predictions": bool(settings.record_predictions),
        "--measure global-accuracy": "global-accuracy" in settings.measure,
        "--measure public-logits": "public-logits" in settings.measure,
    }
    for option, is_given in refused.items():
        if is_given:
            raise UsageError(
                f"{option} needs one class for each sample, and {what}", do="leave it out"
            )


def _able(registry: Registry, kind: str, task: str) -> list[str]:
    """Return the installed plugins of a kind that work for a task."""
    able = []
    for plugin in registry.plugins(kind):
        loaded = _loaded(registry, kind, plugin.name)
        if loaded is not None and task in tasks_of(loaded, kind):
            able.append(plugin.name)
    return able


def _loaded(registry: Registry, kind: str, name: str) -> type | None:
    """Return the class of an installed plugin; None if it cannot be loaded."""
    try:
        return registry.load(kind, name)
    except ProtoflError:
        return None

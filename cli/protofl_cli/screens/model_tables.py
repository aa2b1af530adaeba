"""Tables of a model group in ``protofl show``: its samples and its architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.data.spec import SampleSpec
    from protofl.hooks.discovery.registry import Registry

CHANNELS = 3
"""Channels of the counted architectures if the group takes any number."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "series": {"shape": (1, 64)},
    "tokens": {"shape": (64,), "vocabulary": 5000, "padding": 0},
    "table": {"shape": (32,)},
}
"""Samples of the counted architectures for other kinds than images."""


def model_group(registry: Registry, text: str, plugin_class: Any, classes: int) -> None:  # noqa: ANN401
    """Print a model group's tables.

    Args:
        registry: Registry of the group.
        text: Name with the argument, if any.
        plugin_class: Class of the group.
        classes: Number of classes C of the architectures.
    """
    rows, seen = _rows(plugin_class)
    render.pairs(rows)
    render.text()
    counted = _counted(registry, text, plugin_class, classes, seen)
    if counted is None:
        render.text(f"The architectures follow the name: {text}:…\n")
        return
    predicts_tokens = seen.task.name == "language-model"
    render.table(
        ("client", "architecture", "head", "own width", "parameters", "forward FLOPs"),
        [
            (
                *(str(each[key]) for key in ("client", "architecture", "head")),
                *(f"{each[key]:,}" for key in ("own_width", "parameters")),
                si(each["forward_flops"]),
            )
            for each in counted
        ],
        right=("own width", "parameters", "forward FLOPs"),
        title=f"Architectures: client i gets number i mod {len(counted)}; counted for "
        f"{seen} and {'next tokens' if predicts_tokens else f'{classes} classes'}",
    )


def group_values(
    registry: Registry,
    text: str,
    plugin_class: Any,  # noqa: ANN401 - a plugin
    classes: int,
) -> tuple[dict[str, str], list[dict[str, Any]] | None]:
    """Return facts and architectures of a model group as JSON values; see `model_group`."""
    rows, seen = _rows(plugin_class)
    return dict(rows), _counted(registry, text, plugin_class, classes, seen)


def _rows(plugin_class: Any) -> tuple[list[tuple[str, str]], SampleSpec]:  # noqa: ANN401 - a plugin
    """Return facts about a group, and the sample for which its architectures are counted."""
    from protofl.data.spec import SampleSpec, in_words
    from protofl.data.tasks import Task
    from protofl.federation.plan.run_data import kinds_of
    from protofl.federation.plan.task_checks import tasks_of

    width, kinds = getattr(plugin_class, "feature_dim", 512), kinds_of(plugin_class)
    rows = [
        ("K", f"{width} features; --feature-dim changes it, native takes the own width"),
        ("takes", in_words(kinds)),
    ]
    if "image" in kinds:
        side, channels = (
            getattr(plugin_class, "min_side", 32),
            getattr(plugin_class, "channels", None),
        )
        channel_text = f"{channels} channels" if channels else "the data's own channels"
        rows.append(("images", f"{channel_text}; smaller images are enlarged to {side} px"))
        seen = SampleSpec((channels or CHANNELS, side, side))
    else:
        task = Task(tasks_of(plugin_class, "model-group")[0])  # type: ignore[arg-type]
        seen = SampleSpec(kind=kinds[0], **EXAMPLES[kinds[0]], task=task)
    rows.append(("server", getattr(plugin_class, "server_architecture", "resnet56")))
    auxiliary = getattr(plugin_class, "auxiliary_architecture", None) or "its first architecture"
    rows.append(("auxiliary", f"{auxiliary} (fml, fedkd)"))
    return rows, seen


def _counted(
    registry: Registry,
    text: str,
    plugin_class: Any,  # noqa: ANN401 - a plugin
    classes: int,
    seen: SampleSpec,
) -> list[dict[str, Any]] | None:
    """Return the architectures; None if they follow an argument that is missing."""
    import torch

    from protofl.hooks.models.architecture import native_width
    from protofl.hooks.models.flops import profile
    from protofl.hooks.plugin.members import choose

    if getattr(plugin_class, "argument", None) and ":" not in text:
        return None
    width = getattr(plugin_class, "feature_dim", 512)
    result = []
    with render.waiting("counting parameters"):
        for number, architecture in enumerate(
            choose(registry, "model-group", text).call("architectures")
        ):
            parameters, flops = profile(architecture, seen, classes, width)
            with torch.device("meta"):
                features = native_width(architecture, seen, classes, width)
            result.append(
                {
                    "client": number,
                    "architecture": architecture.name,
                    "head": architecture.head,
                    "own_width": features,
                    "parameters": parameters,
                    "forward_flops": flops,
                }
            )
    return result


def si(value: float) -> str:
    """Return a large number with a unit: 1.82 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"

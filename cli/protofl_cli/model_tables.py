"""Tables of a model group in ``protofl show``: its samples and its architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofl_cli import render

if TYPE_CHECKING:
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
    import torch

    from protofl.data.spec import SampleSpec, in_words
    from protofl.data.tasks import Task
    from protofl.federation.run_data import kinds_of
    from protofl.federation.task_checks import tasks_of
    from protofl.hooks.models.architecture import native_width
    from protofl.hooks.models.flops import profile
    from protofl.hooks.plugin.members import choose

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
    render.pairs(rows)
    render.text()
    if getattr(plugin_class, "argument", None) and ":" not in text:
        render.text(f"The architectures follow the name: {text}:…\n")
        return
    choice = choose(registry, "model-group", text)
    predicts_tokens = seen.task.name == "language-model"
    cells = []
    with render.waiting("counting parameters"):
        architectures = choice.call("architectures")
        for number, architecture in enumerate(architectures):
            parameters, flops = profile(architecture, seen, classes, width)
            with torch.device("meta"):
                features = native_width(architecture, seen, classes, width)
            counts = f"{features:,}", f"{parameters:,}", si(flops)
            cells.append((str(number), architecture.name, architecture.head, *counts))
    render.table(
        ("client", "architecture", "head", "own width", "parameters", "forward FLOPs"),
        cells,
        right=("own width", "parameters", "forward FLOPs"),
        title=f"Architectures: client i gets number i mod {len(cells)}; counted for "
        f"{seen} and {'next tokens' if predicts_tokens else f'{classes} classes'}",
    )


def si(value: float) -> str:
    """Return a large number with a unit: 1.82 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"

"""Modules that train beside a client's model, and what of a client its training updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from protofl.errors import MissingModule
from protofl.models.architecture import SplitModel


@dataclass
class ModuleSlot:
    """A method's module on a client."""

    module: nn.Module
    train: bool
    lr: float | None
    temporary: bool = False
    with_model: bool = False


def parameter_groups(
    model: SplitModel,
    slots: Mapping[str, ModuleSlot],
    lr: float,
    factor: float,
    trains: Sequence[str] = (),
) -> list[tuple[list[nn.Parameter], float]]:
    """What local training updates, with the learning rate of each group.

    Args:
        model: The client's model.
        slots: {``METHOD/NAME``: a module beside it}.
        lr: The run's learning rate.
        factor: Of all learning rates, also of those of modules.
        trains: ``extractor``, ``head`` and names of modules; empty for all.

    Raises:
        MissingModule: The client has no such part.
    """
    parts = {"extractor": model.extractor, "head": model.head}
    names = {name: name.partition("/")[2] for name in slots}
    if missing := [name for name in trains if name not in (*parts, *names.values())]:
        raise MissingModule(missing[0], "a phase's client", [*parts, *names.values()])
    chosen = [part for name, part in parts.items() if name in trains] if trains else [model]
    weights = [p for part in chosen for p in part.parameters() if p.requires_grad]
    groups = [(weights, lr * factor)]
    for name, slot in slots.items():
        if not slot.train or (trains and names[name] not in trains):
            continue
        if slot.with_model:
            weights.extend(slot.module.parameters())
        else:
            own = lr if slot.lr is None else slot.lr
            groups.append((list(slot.module.parameters()), own * factor))
    return groups

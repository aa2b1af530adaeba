"""Modules of methods on a client: parameter groups, all modules as one, reuse of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from protofl.errors import MissingModule
from protofl.hooks.models.architecture import SplitModel

T = TypeVar("T")


@dataclass
class ModuleSlot:
    """A method's module on a client."""

    module: nn.Module
    train: bool
    lr: float | None
    temporary: bool = False
    with_model: bool = False


def set_mode(module: nn.Module, training: bool) -> None:
    """Set train mode, or eval mode if any part of a module is in train mode.

    To look takes a tenth of the time that `torch.nn.Module.train` takes, and most calls find all
    in eval mode.
    """
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is not None:
            if training or part.training:
                module.train(training)
                return
            waiting.extend(part._modules.values())


def parameter_groups(
    model: SplitModel,
    slots: Mapping[str, ModuleSlot],
    lr: float,
    factor: float,
    trains: Sequence[str] = (),
) -> list[tuple[list[nn.Parameter], float]]:
    """Return the parameters that local training updates, with the learning rate of each group.

    Args:
        model: The client's model.
        slots: {``METHOD/NAME``: a module of a method}.
        lr: The run's learning rate.
        factor: Factor of all learning rates.
        trains: ``extractor``, ``head`` and names of modules; empty for all.

    Raises:
        MissingModule: The client has no such part.
    """
    parts = {"extractor": model.extractor, "head": model.head}
    names = {name: name.partition("/")[2] for name in slots}
    if missing := [name for name in trains if name not in (*parts, *names.values())]:
        raise MissingModule(missing[0], "a phase's client", [*parts, *names.values()])
    chosen = [module for name, module in parts.items() if name in trains] if trains else [model]
    weights = [p for module in chosen for p in module.parameters() if p.requires_grad]
    groups = [(weights, lr * factor)]
    for name, slot in slots.items():
        if not slot.train or (trains and names[name] not in trains):
            continue
        if slot.with_model:
            weights.extend(slot.module.parameters())
        else:
            slot_lr = lr if slot.lr is None else slot.lr
            groups.append((list(slot.module.parameters()), slot_lr * factor))
    return groups


class CombinedModule(nn.Module):
    """A client's model and the modules of methods, as one module.

    A call runs the given function, so that `torch.func.functional_call` can replace the parameters
    of all modules while the function runs.

    Args:
        model: The client's model.
        slots: {method: {name: module}}.
    """

    def __init__(self, model: SplitModel, slots: Mapping[str, Mapping[str, nn.Module]]) -> None:
        super().__init__()
        self.model = model
        self.slots = nn.ModuleDict(
            {
                f"{method}/{name}".replace(".", "-"): module
                for method, modules in slots.items()
                for name, module in modules.items()
            }
        )
        self._names = {m: list(modules) for m, modules in slots.items()}

    def forward(self, function: Callable[[], T]) -> T:
        """Call the function."""
        return function()

    def modules_of(self) -> dict[str, dict[str, nn.Module]]:
        """Return the methods' modules, {method: {name: module}}."""
        slots = iter(self.slots.values())
        return {m: {n: next(slots) for n in names} for m, names in self._names.items()}


class Spares:
    """Unused models.

    Args:
        most: Number of models to keep; the oldest is dropped first.
        each: Number of models of one architecture to keep.
    """

    def __init__(self, most: int, each: int = 1) -> None:
        self._most, self._each = most, each
        self._free: list[tuple[str, SplitModel]] = []
        self._built: dict[str, list[object]] = {}

    def note(self, name: str, model: SplitModel) -> None:
        """Record the structure of a new model of an architecture."""
        if self._most and name not in self._built:
            self._built[name] = _structure(model)

    def take(self, name: str) -> SplitModel | None:
        """Return a model with arbitrary weights, or None."""
        for place, (architecture, model) in enumerate(self._free):
            if architecture == name:
                del self._free[place]
                return model
        return None

    def give(self, name: str, model: SplitModel) -> None:
        """Take back a model, unless its structure has changed."""
        there = sum(architecture == name for architecture, _ in self._free)
        if there >= self._each or not self._most or self._built.get(name) != _structure(model):
            return
        self._free.append((name, model))
        if len(self._free) > self._most:
            self._free.pop(0)


def _structure(model: SplitModel) -> list[object]:
    """Return everything of a model that could be changed, except the values of its weights."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    parts: list[object] = [
        (name, type(module), *(len(getattr(module, h)) for h in hooks))
        for name, module in model.named_modules()
    ]
    named = (*model.named_parameters(), *model.named_buffers())
    parts += [(n, t.shape, t.stride(), t.dtype, t.requires_grad, t.device) for n, t in named]
    return parts


@contextmanager
def restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore parameters and buffers after the block, also after an error."""
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)

"""Models that are used again, with other weights: making one takes longer than filling it."""

from __future__ import annotations

from collections import OrderedDict

from protofl.models.architecture import SplitModel


class Spares:
    """Models that nobody uses at the moment, one of an architecture at most.

    Args:
        most: Models to keep; those that came first go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: OrderedDict[str, SplitModel] = OrderedDict()
        self._built: dict[str, list[object]] = {}

    def note(self, name: str, model: SplitModel) -> None:
        """Remember what a model of an architecture is made of, before others work on it."""
        if self._most and name not in self._built:
            self._built[name] = _structure(model)

    def take(self, name: str) -> SplitModel | None:
        """A model whose weights are somebody's, or None."""
        return self._free.pop(name, None)

    def give(self, name: str, model: SplitModel) -> None:
        """Take back a model, unless what it is made of has changed."""
        if not self._most or name in self._free or self._built[name] != _structure(model):
            return
        self._free[name] = model
        if len(self._free) > self._most:
            self._free.popitem(last=False)


def _structure(model: SplitModel) -> list[object]:
    """All of a model that is not the values of its weights and that could be changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    parts: list[object] = [
        (name, type(module), *(len(getattr(module, h)) for h in hooks))
        for name, module in model.named_modules()
    ]
    named = (*model.named_parameters(), *model.named_buffers())
    parts += [(n, t.shape, t.stride(), t.dtype, t.requires_grad, t.device) for n, t in named]
    return parts

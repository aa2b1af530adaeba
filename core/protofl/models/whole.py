"""A model and the modules that train beside it, as one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from protofl.models.architecture import SplitModel


class Whole(nn.Module):
    """A client's model and the modules that methods gave it, as one module.

    Calling it calls the function that it is given, so that `torch.func.functional_call` replaces
    the parameters of all of them while that function runs.

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
                for method, own in slots.items()
                for name, module in own.items()
            }
        )
        self._names = {m: list(own) for m, own in slots.items()}

    def forward(self, function: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401
        """What the function returns."""
        return function(*given)

    def modules_of(self) -> dict[str, dict[str, nn.Module]]:
        """The methods' modules, {method: {name: module}}; of a copy the copies."""
        slots = iter(self.slots.values())
        return {m: {n: next(slots) for n in names} for m, names in self._names.items()}

    @property
    def modes(self) -> tuple[bool, ...]:
        """Which modules are in train mode."""
        return tuple(m.training for m in self.modules() if m is not self and m is not self.slots)

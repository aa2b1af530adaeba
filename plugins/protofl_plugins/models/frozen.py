"""Frozen blocks of nets, and images as pretrained weights want them.

A frozen block is not a submodule, so optimisers, checkpoints, payloads and copies have only what is
trained. All clients of a process share one frozen block.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from protofl_plugins.models.torchvision_import import import_torchvision


def blocks_of(net: nn.Module) -> list[str]:
    """Return the paths of a net's blocks with weights, in order.

    A block is a child of the net, or of a sequence of children.
    """
    import_torchvision()
    from torchvision.models.vision_transformer import Encoder  # only nets of torchvision have one

    result = []
    for name, child in net.named_children():
        if type(child) in (nn.Sequential, Encoder):
            result += [f"{name}.{path}" for path in blocks_of(child)]
        elif next(child.parameters(), None) is not None:
            result.append(name)
    return result


class Scaled(nn.Module):
    """Images of −1…1, which models of protofl get, as pretrained weights want them.

    Args:
        mean: Of each channel, of images in 0…1.
        deviation: Of each channel.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        middle, width = torch.tensor(mean), torch.tensor(deviation)
        self.register_buffer("factor", (0.5 / width).reshape(-1, 1, 1))
        self.register_buffer("shift", ((0.5 - middle) / width).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """B×channels×H×W → the same."""
        return x * self.factor + self.shift


class Frozen(nn.Module):
    """A module that is not trained, in eval mode; copies of this one share it.

    Args:
        module: The module.
        computed: True if rows B×K′ of floats are features that it has returned before, which pass
            unchanged.
    """

    def __init__(self, module: nn.Module, *, computed: bool = False) -> None:
        super().__init__()
        self._shared = _Shared(module.eval().requires_grad_(False))
        self._computed = computed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as nn.Module's
        """Return an attribute of the module, which the net around it may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_shared"].any, name)

    def on(self, device: torch.device) -> nn.Module:
        """Return the module on a device."""
        return self._shared.on(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's result."""
        if self._computed and x.ndim == 2 and x.is_floating_point():
            return x
        return cast(Tensor, self.on(x.device)(x))


class _Shared:
    """A module on each device that asks for it."""

    def __init__(self, module: nn.Module) -> None:
        first = next(chain(module.parameters(), module.buffers()), torch.empty(0))
        self._found = {first.device: module}

    @property
    def any(self) -> nn.Module:
        return next(iter(self._found.values()))

    def on(self, device: torch.device) -> nn.Module:
        if device not in self._found:
            self._found[device] = deepcopy(self.any).to(device)
        return self._found[device]

    def __deepcopy__(self, memo: object) -> _Shared:
        return self

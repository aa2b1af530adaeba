"""Models without weights of their own, for looking at them or for other weights to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from protofl.data.spec import SampleSpec
from protofl.models.architecture import Architecture, SplitModel


def unset_model(
    architecture: Architecture, sample: SampleSpec, num_classes: int, feature_dim: int
) -> SplitModel:
    """A model whose weights are whatever their memory holds; quick, and draws nothing."""
    with torch.random.fork_rng(devices=[]), _Unset():
        return architecture.build(sample, num_classes, feature_dim)


class _Unset(TorchFunctionMode):
    """Leaves parameters as their memory is: nothing is drawn, filled or written inside."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the function returns
        given = kwargs or {}
        target = args[0] if args else given.get("tensor")
        name = getattr(function, "__name__", "")
        if isinstance(target, nn.Parameter) and name.endswith("_") and not name.endswith("__"):
            if name != "requires_grad_":
                return target
        return function(*args, **given)

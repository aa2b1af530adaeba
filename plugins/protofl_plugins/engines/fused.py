"""Fully connected layers that are updated by the factors of their gradients.

The gradient of a layer's weight W [out, in] is Gᵀ X, of its input X [B, in] and the loss's gradient
G [B, out] by its output. W ← W − η GᵀX is one matrix product: no gradient is written and read
again. Where layers are large and batches small, most of a CPU's step is work on such weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import protofl as pf
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

SMALLEST = 1 << 16
"""Weights of a layer that is worth it; smaller ones stay in the processor's caches anyway."""

MULTIPLE = 4
"""Rows of the factors are filled up to a multiple of this: matrix products of ten rows are slower
than of twelve."""


class FusedLinears:
    """The trained fully connected layers of a client, while they train.

    Inside ``with`` autograd gives no gradients of their weights; `gradients` notes the factors
    instead, and `update` makes the step. A weight that a loss reads itself, beside the layer, has
    an ordinary gradient of that part.

    Args:
        job: Where it asks for SGD without momentum and clipping in one precision, all larger layers
            of `torch.nn.Linear` that it trains are taken; none else, and none of None.
    """

    def __init__(self, job: pf.TrainJob | None) -> None:
        self._rates: dict[int, float] = {}
        self._layers: list[nn.Linear] = []
        self._factors: list[tuple[nn.Linear, Tensor, Tensor]] = []
        if job is None or job.optimizer != "sgd" or job.momentum or job.clip:
            return
        if job.precision != "fp32":
            return
        self._rates = {id(p): lr for parameters, lr in job.groups for p in parameters}
        self._layers = [
            layer
            for layer in job.whole().modules()
            if type(layer) is nn.Linear
            and id(layer.weight) in self._rates
            and layer.weight.numel() >= SMALLEST
        ]

    def __enter__(self) -> FusedLinears:
        for layer in self._layers:
            layer.forward = partial(_forward, layer, self._factors)  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        for layer in self._layers:
            del layer.forward

    def gradients(self, total: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Those of the loss by parameters, less the layers' part; None where none reaches one."""
        self._factors.clear()
        return torch.autograd.grad(total, parameters, allow_unused=True)

    @torch.no_grad()
    def update(self) -> None:
        """One step of SGD on the layers."""
        for layer, G, x in self._factors:
            rows = (0, 0, 0, -len(x) % MULTIPLE)
            rate = self._rates[id(layer.weight)]
            layer.weight.addmm_(pad(G, rows).T, pad(x, rows), alpha=-rate)
            if layer.bias is not None and id(layer.bias) in self._rates:
                layer.bias.add_(G.sum(0), alpha=-self._rates[id(layer.bias)])
        self._factors.clear()


def _forward(layer: nn.Linear, factors: list[Any], x: Tensor) -> Tensor:
    found: Tensor = _Layer.apply(x, layer.weight, layer.bias, layer, factors)
    return found


class _Layer(torch.autograd.Function):
    """x Wᵀ + b, whose backward pass notes G and X in place of the gradients of W and b."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Linear,
        factors: list[Any],
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.factors = layer, factors
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,) = ctx.saved_tensors
        weight = ctx.layer.weight
        ctx.factors.append((ctx.layer, G.flatten(0, -2), x.detach().flatten(0, -2)))
        return _product(G, weight.T, None) if ctx.needs_input_grad[0] else None, *[None] * 4


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer's output; oneDNN's product of few rows is the faster one on CPUs."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and ONEDNN is not None:
        return ONEDNN(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return linear(x, weight, bias)


ONEDNN: Any = None
if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
    ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)

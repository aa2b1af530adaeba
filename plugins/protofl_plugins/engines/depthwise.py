"""Depthwise convolutions on maps of a few pixels, tap by tap.

oneDNN's gradient of a depthwise kernel takes 0.3 to 1.7 ms on maps of at most 2×2 pixels, where the
sums themselves take a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from protofl_plugins.engines.products import Taps, taps_of

FEW_PIXELS = 4
"""Pixels of the largest output map on which the kernel's gradient is summed tap by tap."""


def depthwise(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    """Return a function from images B×C×height×width to a depthwise convolution's output."""
    known: dict[torch.Size, tuple[Taps, Taps]] = {}

    def forward(x: Tensor) -> Tensor:
        if x.ndim == 4:
            size = x.shape[2:]
            down, across = known[size] = known.get(size) or taps_of(layer, *size)
            if down.outputs * across.outputs <= FEW_PIXELS:
                found: Tensor = _Depthwise.apply(x, layer.weight, layer.bias, layer, down, across)
                return found
        return nn.Conv2d.forward(layer, x)

    return forward


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Conv2d,
        down: Taps,
        across: Taps,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.layer, ctx.taps = layer, (down, across)
        return conv2d(x, weight, bias, layer.stride, layer.padding, groups=layer.groups)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight, bias = ctx.saved_tensors
        layer, needed, (down, across) = ctx.layer, ctx.needs_input_grad, ctx.taps
        if torch.is_grad_enabled():  # gradients of gradients
            given = [t for t, need in zip((x, weight, bias), needed, strict=False) if need]
            y = conv2d(x, weight, bias, layer.stride, layer.padding, groups=layer.groups)
            found = iter(torch.autograd.grad(y, given, G, create_graph=True))
            return *(next(found) if need else None for need in needed[:3]), None, None, None
        dx = dW = None
        if needed[0]:
            rest = layer.stride, layer.padding, (1, 1), False, (0, 0), layer.groups
            only_x = [True, False, False]
            dx = torch.ops.aten.convolution_backward(G, x, weight, None, *rest, only_x)[0]
        if needed[1]:
            dW = torch.zeros_like(weight)
            images, last = x.permute(0, 2, 3, 1), G.permute(0, 2, 3, 1)
            images = pad(images, (0, 0, *across.padding, *down.padding))
            for i, j in pairs(range(down.count), range(across.count)):
                read = images[:, down.inputs(i), across.inputs(j)]
                dW[:, 0, down.first + i, across.first + j] = (read * last).sum((0, 1, 2))
        return dx, dW, G.sum((0, 2, 3)) if needed[2] else None, None, None, None

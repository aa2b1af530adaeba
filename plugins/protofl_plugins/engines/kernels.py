"""Convolutions of which only the kernel's gradient is computed here.

Two gradients are slow in oneDNN. That of a depthwise kernel takes 0.3 to 1.7 ms on maps of at most
2×2 pixels, where the sums themselves take microseconds: they are summed tap by tap. That of a
kernel on one input channel takes five times as long without AVX-512 as with it: there it is a
product of the output's gradient and the unfolded patches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from protofl_plugins.engines.products import AVX512, PatchRows, taps_of

FEW_PIXELS = 4
"""Pixels of the largest output map on which a depthwise kernel's gradient is summed tap by tap."""

KernelGradient = Callable[[Tensor, Tensor], Tensor]
"""Computes a kernel's gradient from the output's gradient and the images, both B×C×height×width."""


def kernel_gradient(layer: nn.Conv2d, height: int, width: int) -> KernelGradient | None:
    """Return what computes the gradient of a convolution's kernel faster than PyTorch, or None.

    Args:
        layer: The convolution.
        height: Pixels of the maps that it reads, downwards.
        width: The same, across.
    """
    if layer.groups > 1:
        down, across = taps_of(layer, height, width)
        return _tap_by_tap(layer) if down.outputs * across.outputs <= FEW_PIXELS else None
    return _by_patches(layer, height, width) if layer.in_channels == 1 and not AVX512 else None


def _tap_by_tap(layer: nn.Conv2d) -> KernelGradient:
    def gradient(G: Tensor, x: Tensor) -> Tensor:
        down, across = taps_of(layer, *x.shape[2:])
        result, last = torch.zeros_like(layer.weight), G.permute(0, 2, 3, 1)
        images = pad(x.permute(0, 2, 3, 1), (0, 0, *across.padding, *down.padding))
        for i, j in pairs(range(down.count), range(across.count)):
            read = images[:, down.inputs(i), across.inputs(j)]
            result[:, 0, down.first + i, across.first + j] = (read * last).sum((0, 1, 2))
        return result

    return gradient


def _by_patches(layer: nn.Conv2d, height: int, width: int) -> KernelGradient | None:
    kind = PatchRows(layer, height, width)
    if not kind.whole:
        return None

    def gradient(G: Tensor, x: Tensor) -> Tensor:
        dW = kind.output_rows(G).T @ kind.rows(x)[0]
        return dW.as_strided(layer.weight.shape, layer.weight.stride())

    return gradient


class Convolution(torch.autograd.Function):
    """PyTorch's convolution with another way to its kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Conv2d,
        gradient: KernelGradient,
    ) -> Tensor:
        """Return the convolution."""
        ctx.save_for_backward(x, weight, bias)
        ctx.layer, ctx.gradient = layer, gradient
        return conv2d(x, weight, bias, layer.stride, layer.padding, groups=layer.groups)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients by images, kernel and bias."""
        x, weight, bias = ctx.saved_tensors
        layer, needed = ctx.layer, ctx.needs_input_grad
        if torch.is_grad_enabled():
            y = conv2d(x, weight, bias, layer.stride, layer.padding, groups=layer.groups)
            return *differentiable_gradients(y, (x, weight, bias), G, needed), None, None
        dx = dW = None
        if needed[0]:
            rest = layer.stride, layer.padding, (1, 1), False, (0, 0), layer.groups
            only_x = [True, False, False]
            dx = torch.ops.aten.convolution_backward(G, x, weight, None, *rest, only_x)[0]
        if needed[1]:
            dW = ctx.gradient(G, x)
        return dx, dW, G.sum((0, 2, 3)) if needed[2] else None, None, None


def differentiable_gradients(
    y: Tensor, inputs: tuple[Tensor | None, ...], G: Tensor, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return the gradients of PyTorch's y by its inputs, for losses on gradients.

    Args:
        y: The output, as PyTorch computes it of the inputs.
        inputs: Tensors, or None for one that is not there.
        G: The gradient by y.
        needed: Which inputs need a gradient; the others have None.
    """
    pairs_needed = zip(inputs, needed, strict=False)
    differentiated = [t for t, need in pairs_needed if need and t is not None]
    gradients = iter(torch.autograd.grad(y, differentiated, G, create_graph=True))
    return [next(gradients) if need else None for need in needed[: len(inputs)]]

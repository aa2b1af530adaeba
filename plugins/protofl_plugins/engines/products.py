"""Layers as matrix products: rows [n, in] times a weight [out, in].

A linear layer's rows are its inputs. A convolution's rows are the unfolded patches that its kernel
reads, one for each output pixel of each image, and its weight has the kernel taps and channels in
one axis. Kernel taps that only ever meet padding are left out: of a 3×3 kernel on a 1×1 map only
the centre tap counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad

FEW_ROWS = 16
"""Rows up to which oneDNN computes X Wᵀ faster as (W Xᵀ)ᵀ."""

LARGE_PRODUCT = 8_000_000
"""Multiplications from which oneDNN's product is faster than MKL's, with AVX-512."""


AVX512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
"""True if PyTorch uses AVX-512 on this processor."""


def _onednn_product() -> object:
    """Return oneDNN's linear operator if it is faster than MKL's product, otherwise None."""
    if not (AVX512 and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(operator, "default", None)


ONEDNN = _onednn_product()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, [n, out], by the library that is faster for its shape.

    The choice is a fixed rule of shape and instruction set, which benchmarks/steps.py measures. A
    rule that measured at run time would make results depend on it.

    Args:
        x: Rows [n, in].
        weight: W [out, in].
        bias: b [out], or None.
    """
    large = len(x) * weight.numel() >= LARGE_PRODUCT
    # With gaps between its rows or columns a weight meets oneDNN's reference code, which is slow.
    dense = x.is_contiguous() and (weight.is_contiguous() or weight.T.is_contiguous())
    if ONEDNN is None or not (large and dense) or x.dtype != torch.float32:
        return linear(x, weight, bias)
    assert callable(ONEDNN)
    if len(x) <= FEW_ROWS and weight.is_contiguous():
        y: Tensor = ONEDNN(weight, x, None, "none", [], "").T.contiguous()
        return y if bias is None else y.add_(bias)
    result: Tensor = ONEDNN(x, weight, bias, "none", [], "")
    return result


class LinearRows:
    """A linear layer as a product.

    Attributes:
        layer: The layer.
        parts: Its weight as views [out, in], one for each part of the rows.
        whole: Whether the parts are the whole weight.
    """

    whole = True

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.parts = [layer.weight.detach()]

    def rows(self, x: Tensor) -> list[Tensor]:
        """Return the rows of a batch, [n, in]."""
        return [x.reshape(-1, x.shape[-1])]

    def output(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the product [n, out] in the shape of the layer's output for the batch x."""
        return y.view(*x.shape[:-1], y.shape[-1])

    def output_rows(self, G: Tensor) -> Tensor:
        """Return the gradient by the output as rows [n, out]."""
        return G.reshape(-1, G.shape[-1])

    def input_gradient(self, rows: list[Tensor], x: Tensor) -> Tensor:
        """Return the gradient by x from the gradient by its rows."""
        return rows[0].view(x.shape)

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output as PyTorch computes it."""
        return linear(x, weight, bias)


@dataclass(frozen=True)
class Taps:
    """The taps of a kernel that meet a map along one axis, and how the map is padded for them.

    Attributes:
        first: The first tap.
        count: Taps.
        outputs: Output pixels.
        stride: Input pixels between two output pixels.
        padding: Pixels to add before and after the map; negative ones are cut off.
    """

    first: int
    count: int
    outputs: int
    stride: int
    padding: tuple[int, int]

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, padding: int) -> Taps:
        """Return the taps of a kernel on a map of ``size`` pixels."""
        outputs = (size + 2 * padding - kernel) // stride + 1
        first = max(0, padding - (outputs - 1) * stride)
        last = min(kernel - 1, size - 1 + padding)
        before = padding - first
        read = (outputs - 1) * stride + last - first + 1
        return cls(first, last - first + 1, outputs, stride, (before, read - size - before))

    @property
    def own(self) -> slice:
        """The taps in the kernel."""
        return slice(self.first, self.first + self.count)

    def inputs(self, tap: int) -> slice:
        """Return the pixels of the padded map that a tap reads."""
        return slice(tap, tap + self.stride * (self.outputs - 1) + 1, self.stride)


class PatchRows:
    """A convolution of one group as a product.

    Args:
        layer: The convolution; its weight is in channels-last layout.
        height: Pixels of the maps that it reads, downwards.
        width: The same, across.

    Attributes:
        layer: The layer.
        parts: The used taps of its weight as views [out, in], one for each part of the rows.
        whole: Whether the parts are the whole weight.
        pixels: Pixels of an output map.
        reads: Whether any tap meets the map; otherwise there is padding alone.
    """

    def __init__(self, layer: nn.Conv2d, height: int, width: int) -> None:
        self.layer = layer
        self._down, self._across = down, across = taps_of(layer, height, width)
        self.pixels = down.outputs * across.outputs
        self.reads = down.count > 0 and across.count > 0
        taps = layer.weight.detach().permute(0, 2, 3, 1)
        self.whole = (down.count, across.count) == layer.kernel_size
        used = taps[:, down.own, across.own]
        self.parts = [taps.flatten(1)] if self.whole else [t.flatten(1) for t in used.unbind(1)]
        self._padded = any(down.padding + across.padding)
        self._pointwise = not self._padded and (down.count, across.count, down.stride) == (1, 1, 1)

    def rows(self, x: Tensor) -> list[Tensor]:
        """Return the patches of all output pixels of a batch, [n, in]."""
        images = x.permute(0, 2, 3, 1)
        if self._pointwise:
            return [images.reshape(-1, x.shape[1])]
        down, across = self._down, self._across
        if self._padded:
            images = pad(images, (0, 0, *across.padding, *down.padding))
        patches = images.unfold(1, down.count, down.stride).unfold(2, across.count, across.stride)
        count = len(x) * self.pixels
        if len(self.parts) == 1:
            return [patches.permute(0, 1, 2, 4, 5, 3).reshape(count, -1)]
        return [
            tap_patches.permute(0, 1, 2, 4, 3).reshape(count, -1)
            for tap_patches in patches.unbind(4)
        ]

    def output(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the product [n, out] as images, channels last."""
        size = len(x), self._down.outputs, self._across.outputs, y.shape[-1]
        return y.view(size).permute(0, 3, 1, 2)

    def output_rows(self, G: Tensor) -> Tensor:
        """Return the gradient by the output as rows [n, out]."""
        return G.permute(0, 2, 3, 1).reshape(-1, G.shape[1])

    def input_gradient(self, rows: list[Tensor], x: Tensor) -> Tensor:
        """Return the gradient by x: each patch's gradient added to the pixels that it read."""
        down, across = self._down, self._across
        size = len(x), down.outputs, across.outputs
        if self._pointwise:
            return rows[0].view(*size, -1).permute(0, 3, 1, 2)
        channels = x.shape[1]
        if len(rows) == 1:
            parts = rows[0].view(*size, down.count, across.count, channels).unbind(3)
        else:
            parts = tuple(tap_rows.view(*size, across.count, channels) for tap_rows in rows)
        height, width = x.shape[2] + sum(down.padding), x.shape[3] + sum(across.padding)
        tall = _summed(parts, down, 1, (len(x), height, *parts[0].shape[2:]))
        full = _summed(tall.unbind(3), across, 2, (len(x), height, width, channels))
        if self._padded:
            cut = [-pixels for pixels in (*across.padding, *down.padding)]
            full = pad(full, (0, 0, *cut))
        return full.permute(0, 3, 1, 2)

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output as PyTorch computes it."""
        return conv2d(x, weight, bias, self.layer.stride, self.layer.padding)


def taps_of(layer: nn.Conv2d, height: int, width: int) -> tuple[Taps, Taps]:
    """Return the taps of a convolution on maps of a size, down and across."""
    assert not isinstance(layer.padding, str)
    geometry = zip(layer.kernel_size, layer.stride, layer.padding, strict=True)
    down, across = (
        Taps.of(size, *axis_geometry)
        for size, axis_geometry in zip((height, width), geometry, strict=True)
    )
    return down, across


def _summed(parts: Sequence[Tensor], taps: Taps, axis: int, size: Sequence[int]) -> Tensor:
    """Add each tap's part to the pixels that the tap reads along an axis, in a tensor of a size."""
    if len(parts) == 1 and parts[0].shape == torch.Size(size):
        return parts[0]
    result = parts[0].new_zeros(size)
    for tap, tap_values in enumerate(parts):
        result[(slice(None),) * axis + (taps.inputs(tap),)] += tap_values
    return result

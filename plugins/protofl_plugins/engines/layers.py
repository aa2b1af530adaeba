"""Layers that are computed faster while a client trains on a CPU.

The numbers are PyTorch's but for rounding. Three things make them faster:

**Convolutions on small maps** are one product over the unfolded patches of all images
(`protofl_plugins.engines.products`). The last stages of an ImageNet net see maps of 4×4 to 1×1
pixels from images of 32×32, where a convolution library computes one image after the other and
multiplies padding. 1×1 convolutions of few images are products at any map size. The gradient of a
depthwise kernel is summed tap by tap (`protofl_plugins.engines.kernels`).

**No gradient where none is needed.** The gradient of a weight W [out, in] is GᵀX, of the rows
X [n, in] that it is multiplied with and the loss's gradient G [n, out] by the output. So a step of
plain SGD is one product, W ← W − η GᵀX, in the backward pass, while W is in the cache. This holds
for weights that a step uses once. With clipping the factors G and X are kept until the norm of all
gradients is known: ‖GᵀX‖² = Σ (GGᵀ ∘ XXᵀ), of two matrices n×n. All other weights have an ordinary
gradient: with momentum, with Adam, or where the loss uses the weight beside its layer.

**Kernels by a fixed rule** of shape and instruction set (`products.product`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import protofl as pf
from protofl_plugins.engines.kernels import (
    Convolution,
    KernelGradient,
    differentiable_gradients,
    kernel_gradient,
)
from protofl_plugins.engines.products import LinearRows, PatchRows, product
from protofl_plugins.engines.stepping import used_once

LARGE_WEIGHT = 1 << 16
"""Weights of a linear layer that is computed here; a smaller one stays in the cache anyway."""

SMALL_MAP = 16
"""Pixels of the largest output map on which a convolution is one product."""

FEW_IMAGES = 16
"""Images below which 1×1 convolutions are one product: there PyTorch computes one by one."""

ROW_MULTIPLE = 4
"""Zero rows fill the factors of an update up to a multiple: twelve rows are faster than ten."""

NORM_ROWS = 64
"""Rows up to which the norm of a gradient is computed from its factors."""

Rows = LinearRows | PatchRows


@dataclass(frozen=True)
class _Factors:
    """The gradient of a layer's weight as products GᵀX, one for each part of the weight."""

    kind: Rows
    G: Tensor
    rows: Sequence[Tensor]

    @torch.no_grad()
    def step(self, rate: float, share: Tensor | None = None) -> None:
        """Subtract the gradient, times the rate and what clipping leaves of it."""
        G = self.G if share is None else self.G * share
        missing = -len(G) % ROW_MULTIPLE
        for matrix, rows in zip(self.kind.parts, self.rows, strict=True):
            if missing:
                filled = [pad(each, (0, 0, 0, missing)) for each in (G, rows)]
                matrix.addmm_(filled[0].T, filled[1], alpha=-rate)
            else:
                matrix.addmm_(G.T, rows, alpha=-rate)

    def gradient(self) -> Tensor:
        """Return the gradient in the shape and layout of the weight."""
        weight = self.kind.layer.weight
        if self.kind.whole:
            dW = self.G.T @ self.rows[0]
            return dW.as_strided(weight.shape, weight.stride())
        whole = torch.zeros_like(weight)
        for matrix, rows in zip(self.kind.parts, self.rows, strict=True):
            place = whole.as_strided(matrix.shape, matrix.stride(), matrix.storage_offset())
            place.copy_(self.G.T @ rows)
        return whole

    def norm(self) -> Tensor:
        """Return the gradient's norm, 0-d; in double precision, as the sum's terms may cancel."""
        G, square = self.G.double(), torch.zeros((), dtype=torch.float64)
        for rows in self.rows:
            X = rows.double()
            square += ((G @ G.T) * (X @ X.T)).sum()
        return square.clamp(min=0).sqrt().to(self.G.dtype)


class _Step:
    """The updates of layers' weights in the backward pass of the current step.

    Attributes:
        rates: {id of a weight: learning rate}, of the weights that it updates.
        kept: Factors of gradients that clipping needs first; None without clipping.
    """

    def __init__(self, *, clips: bool) -> None:
        self.rates: dict[int, float] = {}
        self.kept: list[_Factors] | None = [] if clips else None

    def take(self, factors: _Factors) -> bool:
        """Take a gradient given as factors; False if autograd must have it."""
        rate = self.rates.get(id(factors.kind.layer.weight))
        if rate is None:
            return False
        if self.kept is None:
            factors.step(rate)
            return True
        if len(factors.G) > NORM_ROWS:
            return False
        self.kept.append(factors)
        return True


class _Product(torch.autograd.Function):
    """The output of a layer; its backward pass may update the layer's weight."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kind: Rows,
        step: _Step,
    ) -> Tensor:
        rows = kind.rows(x)
        y = product(rows[0], kind.parts[0], bias)
        for more, matrix in zip(rows[1:], kind.parts[1:], strict=True):
            y += product(more, matrix)
        ctx.save_for_backward(x, weight, bias, *rows)
        ctx.kind, ctx.step = kind, step
        # Autograd must not see a view: the next layer may work in place.
        return kind.output(y, x).data

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight, bias, *rows = ctx.saved_tensors
        kind, needed = ctx.kind, ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients
            y = kind.reference(x, weight, bias)
            return *differentiable_gradients(y, (x, weight, bias), G, needed), None, None
        G_rows = kind.output_rows(G)
        dx = dW = None
        if needed[0]:
            dx = kind.input_gradient([product(G_rows, matrix.T) for matrix in kind.parts], x)
        if needed[1]:
            factors = _Factors(kind, G_rows, rows)
            dW = None if ctx.step.take(factors) else factors.gradient()
        return dx, dW, G_rows.sum(0) if needed[2] else None, None, None


class FastLayers:
    """The layers of a client that are computed faster while it trains.

    Inside `taken` they are. `gradients` runs the backward pass, which updates the weights that it
    can update; `norms` and `update` do the rest where gradients are clipped.

    Args:
        job: The client. Layers are taken on a CPU in ``fp32`` (or wider). Weights are updated in
            the backward pass where the optimiser is SGD without momentum and weight decay.
    """

    def __init__(self, job: pf.backends.TrainJob) -> None:
        on = job.device.type == "cpu" and job.precision == "fp32"
        self._layers = [m for m in job.whole().modules() if on and _is_taken(m)]
        asked = job.optimizer, job.momentum, job.weight_decay or 0
        plain = job.plain and asked == ("sgd", 0, 0)
        weights = {id(m.weight) for m in self._layers if plain}
        self._rates, self._group = dict[int, float](), dict[int, int]()
        for number, (parameters, rate) in enumerate(job.groups):
            weight_ids = [id(p) for p in parameters if id(p) in weights]
            self._rates |= dict.fromkeys(weight_ids, rate)
            self._group |= dict.fromkeys(weight_ids, number)
        self._step = _Step(clips=bool(job.clip))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the layers compute in this way inside the block."""
        for layer in self._layers:
            vars(layer)["forward"] = _forward(layer, self._step)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

    def gradients(self, total: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the loss's gradients by parameters.

        None stands for a parameter that the loss does not reach, and for one that the backward pass
        has updated or `update` will update.
        """
        self._step.rates = used_once(total, self._rates) if self._rates else {}
        try:
            return torch.autograd.grad(total, parameters, allow_unused=True)
        finally:
            self._step.rates = {}

    @torch.no_grad()
    def norms(self) -> dict[int, list[Tensor]]:
        """Return the norms of the gradients that are kept as factors, by group, 0-d."""
        result: dict[int, list[Tensor]] = {}
        for factors in self._step.kept or ():
            result.setdefault(self._group[id(factors.kind.layer.weight)], []).append(factors.norm())
        return result

    def update(self, shares: Mapping[int, Tensor]) -> None:
        """Make the step of SGD for gradients that are kept as factors.

        Args:
            shares: What clipping leaves of each group's gradients, 0-d in 0…1.
        """
        for factors in self._step.kept or ():
            key = id(factors.kind.layer.weight)
            factors.step(self._rates[key], shares.get(self._group[key]))
        if self._step.kept:
            self._step.kept.clear()


def _is_taken(module: nn.Module) -> bool:
    """Return True for a layer that is plain enough, and large enough for it to pay."""
    if "forward" in vars(module):
        return False
    if type(module) is nn.Linear:
        return module.weight.numel() >= LARGE_WEIGHT
    return (
        type(module) is nn.Conv2d
        and module.groups in (1, module.in_channels)
        and (module.groups == 1 or module.out_channels == module.in_channels)
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.permute(0, 2, 3, 1).is_contiguous()
    )


def _forward(layer: nn.Module, step: _Step) -> Callable[[Tensor], Tensor]:
    """Return what a layer computes instead of its own forward pass."""
    weight, usual = layer.weight, layer.forward
    if isinstance(layer, nn.Linear):
        way = partial(_apply, step, LinearRows(layer))
    else:
        assert isinstance(layer, nn.Conv2d)
        way = partial(_convolution, layer, step, {})

    def forward(x: Tensor) -> Tensor:
        """Compute the layer; with other weights (``functional_call``) as PyTorch does."""
        result: Tensor = (way if layer.weight is weight else usual)(x)
        return result

    return forward


def _apply(step: _Step, kind: Rows, x: Tensor) -> Tensor:
    result: Tensor = _Product.apply(x, kind.layer.weight, kind.layer.bias, kind, step)
    return result


@dataclass(frozen=True)
class _Ways:
    """The computation of a convolution for one size of maps: as a product, or another way to dW."""

    kind: PatchRows | None
    gradient: KernelGradient | None

    @classmethod
    def of(cls, layer: nn.Conv2d, height: int, width: int) -> _Ways:
        """Choose by the layer and the size of the maps that it reads."""
        kind = PatchRows(layer, height, width) if layer.groups == 1 else None
        if kind is not None and not kind.reads:
            kind = None
        return cls(kind, kernel_gradient(layer, height, width))


def _convolution(layer: nn.Conv2d, step: _Step, ways: dict[torch.Size, _Ways], x: Tensor) -> Tensor:
    if x.ndim != 4:
        return nn.Conv2d.forward(layer, x)
    way = ways.get(x.shape[2:])
    if way is None:
        way = ways[x.shape[2:]] = _Ways.of(layer, *x.shape[2:])
    few = layer.kernel_size == (1, 1) and len(x) < FEW_IMAGES
    if way.kind is not None and (few or way.kind.pixels <= SMALL_MAP):
        return _apply(step, way.kind, x)
    if way.gradient is None:
        return nn.Conv2d.forward(layer, x)
    result: Tensor = Convolution.apply(x, layer.weight, layer.bias, layer, way.gradient)
    return result

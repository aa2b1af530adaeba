"""Layers that are computed in another way while a client trains: the same sums, made quicker.

**Fully connected layers** are updated by the factors of their gradients: that of a weight
W [out, in] is Gᵀ X, of the layer's input X [B, in] and the loss's gradient G [B, out] by its
output. So W ← W − η GᵀX is one matrix product: no gradient is written and read again. Where layers
are large and batches small, most of a CPU's step is work on such weights. The gradient's norm, for
clipping, is in the factors too: ‖GᵀX‖² = Σ (GGᵀ ∘ XXᵀ), of two matrices B×B.

**1×1 convolutions** of few images are the matrix products that they are. With one thread and fewer
than 16 images PyTorch takes a path of its own for them, one small product per image. On maps of a
few pixels, as a ResNet's last stages have them, that costs a multiple of one product over the
pixels of all images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeGuard

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

FEW = 16
"""Images from which PyTorch takes oneDNN's convolution."""


_Factors = tuple[nn.Linear, Tensor, Tensor]
"""A layer, and G [B, out] and X [B, in] of a batch."""


@contextmanager
def replaced(layers: Sequence[nn.Module], forward: Callable[..., Tensor]) -> Iterator[None]:
    """Have each layer compute ``forward(layer, x)`` inside the block."""
    for layer in layers:
        layer.forward = partial(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class FusedLinears:
    """The trained fully connected layers of a client, while they train.

    Inside `taken` autograd gives no gradients of their weights; `gradients` notes the factors
    instead, and `update` makes the step. A weight that a loss reads itself, beside the layer, has
    an ordinary gradient of that part.

    Args:
        job: Where it asks for SGD without momentum and weight decay in one precision, all larger
            layers of `torch.nn.Linear` that it trains are taken, and none else.
        on: Whether any is.
    """

    def __init__(self, job: pf.TrainJob, *, on: bool) -> None:
        asked = job.optimizer, job.precision, job.momentum, job.weight_decay or 0
        taken = on and job.plain and asked == ("sgd", "fp32", 0, 0)
        groups = enumerate(job.groups if taken else [])
        self._of = {id(p): (n, lr) for n, (parameters, lr) in groups for p in parameters}
        self._layers, self._clip = [m for m in job.whole().modules() if self._worth_it(m)], job.clip
        if self._clip:  # the gradient of a weight that two layers share is in no one's factors
            times = Counter(id(m.weight) for m in self._layers)
            self._layers = [m for m in self._layers if times[id(m.weight)] == 1]
        self._factors: list[_Factors] = []

    def _worth_it(self, m: nn.Module) -> bool:
        large = type(m) is nn.Linear and m.weight.numel() >= SMALLEST
        return large and id(m.weight) in self._of

    def taken(self) -> AbstractContextManager[None]:
        """Have the layers note their factors inside the block."""
        return replaced(self._layers, partial(_linear, self._factors))

    def gradients(self, total: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Those of the loss by parameters, less the layers' part; None where none reaches one."""
        self._factors.clear()
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        return self._whole(found, parameters) if self._clip and self._factors else found

    @torch.no_grad()
    def _whole(
        self, found: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Each gradient in one piece, which has a length: as factors or as a tensor."""
        whole = {id(p): g for p, g in zip(parameters, found, strict=True)}
        by_layer: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {}
        for layer, G, x in self._factors:
            by_layer.setdefault(layer, []).append((G, x))
        self._factors.clear()
        for layer, noted in by_layer.items():
            # A layer that computed twice has the factors of both below each other.
            G, x = (torch.cat(each) for each in zip(*noted, strict=True))
            ordinary, bias = whole[id(layer.weight)], layer.bias
            if ordinary is None and whole.get(id(bias)) is None:
                self._factors.append((layer, G, x))
                continue
            whole[id(layer.weight)] = G.T @ x if ordinary is None else ordinary + G.T @ x
            if id(bias) in self._of:
                own = whole[id(bias)]
                whole[id(bias)] = G.sum(0) if own is None else own + G.sum(0)
        return [whole[id(p)] for p in parameters]

    @torch.no_grad()
    def norms(self) -> dict[int, list[Tensor]]:
        """The norms of the gradients that are kept as factors, by group, 0-d."""
        found: dict[int, list[Tensor]] = {}
        for layer, G, x in self._factors if self._clip else ():
            # In double precision: the sum's terms may cancel.
            rows, columns = G.double(), x.double()
            square = ((rows @ rows.T) * (columns @ columns.T)).sum().clamp(min=0)
            found.setdefault(self._of[id(layer.weight)][0], []).append(square.sqrt().to(G.dtype))
            if id(layer.bias) in self._of:
                length = torch.linalg.vector_norm(G.sum(0))
                found.setdefault(self._of[id(layer.bias)][0], []).append(length)
        return found

    @torch.no_grad()
    def update(self, shares: Mapping[int, Tensor]) -> None:
        """One step of SGD on the layers.

        Args:
            shares: What clipping leaves of each group's gradients, 0-d in 0…1; all, of a group
                that isn't there.
        """
        for layer, G, x in self._factors:
            rows = (0, 0, 0, -len(x) % MULTIPLE)
            for parameter in (layer.weight, layer.bias):
                if parameter is None or id(parameter) not in self._of:
                    continue
                group, rate = self._of[id(parameter)]
                own = G * shares[group] if group in shares else G
                if parameter is layer.weight:
                    parameter.addmm_(pad(own, rows).T, pad(x, rows), alpha=-rate)
                else:
                    parameter.add_(own.sum(0), alpha=-rate)
        self._factors.clear()


def _linear(factors: list[_Factors], layer: nn.Linear, x: Tensor) -> Tensor:
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
        factors: list[_Factors],
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


def pointwise_convolutions(job: pf.TrainJob) -> AbstractContextManager[None]:
    """Have a client's 1×1 convolutions of few images be matrix products inside the block.

    Args:
        job: All plain layers of `torch.nn.Conv2d` with 1×1 kernels are taken that it runs on a CPU
            in float32 (or wider).
    """
    taken = job.device.type == "cpu" and job.precision == "fp32"
    return replaced([m for m in job.whole().modules() if taken and _pointwise(m)], _convolution)


def _pointwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        type(module) is nn.Conv2d
        and "forward" not in vars(module)
        and module.kernel_size == module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Channels are the last axis of a channels-last tensor's memory, so nothing is copied there."""
    if len(x) >= FEW or x.ndim != 4:
        return nn.Conv2d.forward(layer, x)
    y = linear(x.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias)
    return y.permute(0, 3, 1, 2)

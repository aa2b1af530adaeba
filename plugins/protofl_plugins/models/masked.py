"""Nets whose numbers of small magnitude count as 0 (FIARSE).

Linear layers, convolutions, embeddings and attention are masked; norm and recurrent layers are
whole. A masked layer has its parameters under their own names, and a threshold θ as a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.MultiheadAttention)
THETA = "theta"
Scope = Literal["net", "layer"]


def mask(net: nn.Module) -> None:
    """Mask a net's layers, in place, with θ = 0: all numbers count."""
    plain: list[nn.Module] = [layer for layer in net.modules() if isinstance(layer, KINDS)]
    for layer in plain:
        if THETA not in layer._buffers:
            masked_kind = _masked(type(layer), *layer._parameters)  # type: ignore[arg-type]
            _turn(layer, masked_kind)
            layer.register_buffer(THETA, next(layer.parameters()).new_zeros(()))


def unmask(net: nn.Module) -> None:
    """Undo `mask`, in place: layers have their own kinds and no θ."""
    for layer in net.modules():
        if layer._buffers.pop(THETA, None) is not None:
            _turn(layer, type(layer).__mro__[1])


@torch.no_grad()
def set_thresholds(net: nn.Module, size: float, scope: Scope) -> None:
    """Set each θ so that the largest share of the numbers counts.

    Args:
        net: A masked net.
        size: The share γ; at least one number counts. 1: all do, and θ = 0.
        scope: One θ for the net, or one for each layer.
    """
    layers = [layer for layer in net.modules() if THETA in layer._buffers]
    sizes = [torch.cat([p.abs().flatten() for p in _numbers(layer)]) for layer in layers]
    groups = [torch.cat(sizes)] if scope == "net" and sizes else sizes
    thetas = [_threshold(group, size) for group in groups]
    for layer, theta in zip(layers, thetas * (len(layers) // len(thetas or [1])), strict=True):
        layer.get_buffer(THETA).copy_(theta)


def masked(w: Tensor, theta: Tensor) -> Tensor:
    """Return w where |w| ≥ θ, else 0, with gradient 1 + 2θ|w|/(|w| + θ)² on the numbers kept.

    That is the derivative of w·m(|w|), with 2θ/(|w| + θ)² in place of the mask's.
    """
    size = w.detach().abs()
    if not torch.is_grad_enabled():
        return torch.where(size >= theta, w, 0.0)
    slope = 2 * theta * size / (size + theta).square().clamp(min=torch.finfo(w.dtype).tiny)
    kept = w.detach() + (w - w.detach()) * (1 + slope)  # the value is w to the bit
    return torch.where(size >= theta, kept, 0.0)


def _threshold(sizes: Tensor, share: float) -> Tensor:
    if share == 1:
        return sizes.new_zeros(())
    return sizes.topk(max(1, int(len(sizes) * share))).values[-1]


def _numbers(layer: nn.Module) -> Iterator[Tensor]:
    return (p for p in layer._parameters.values() if p is not None)


@cache
def _masked(kind: type[nn.Module], *names: str) -> type[nn.Module]:
    """Return a kind of layer whose parameters are masked where they are read."""
    properties = {name: property(partial(_read, name=name)) for name in names}
    return type(f"Masked{kind.__name__}", (kind,), properties)


def _turn(layer: nn.Module, kind: type[nn.Module]) -> None:
    layer.__class__ = kind


def _read(layer: nn.Module, name: str) -> Tensor | None:
    parameter = layer._parameters[name]
    return None if parameter is None else masked(parameter, layer.get_buffer(THETA))

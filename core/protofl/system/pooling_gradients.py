"""Gradients of adaptive pooling that give equal bits on a GPU, which torch's own kernels don't.

With ``torch.use_deterministic_algorithms(True)`` torch refuses its kernels of these gradients on
CUDA: where the windows of two outputs overlap, they add up in any order. Every net whose features
are pooled to the width K uses them. Here each input gathers from the outputs whose windows hold it,
in a fixed order.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library


def average_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of `torch.nn.functional.adaptive_avg_pool2d` with respect to its input.

    Args:
        gradient: The gradient of the output, ``[..., h, w]``.
        x: The input, ``[..., H, W]``; only its sizes are read.
    """
    rows = _gathered(gradient.transpose(-1, -2), x.shape[-2]).transpose(-1, -2)
    return _gathered(rows, x.shape[-1]).contiguous()


def _gathered(gradient: Tensor, size: int) -> Tensor:
    """Return the gradient of the mean over windows of the last dimension, which has some size.

    Output i of K has the window from ⌊i·size/K⌋ up to ⌈(i+1)·size/K⌉. So the outputs whose windows
    hold place p are those from ⌊p·K/size⌋ up to ⌈(p+1)·K/size⌉.
    """
    K = gradient.shape[-1]
    if K == size:
        return gradient
    # On the device alone, so that a CUDA graph can record it.
    place = torch.arange(size, device=gradient.device)
    first, end = place * K // size, _ceil((place + 1) * K, size)
    most = -(-K // size) + 1
    output = first[:, None] + torch.arange(most, device=gradient.device)
    holds = output < end[:, None]
    output = output.clamp(max=K - 1)
    lengths = _ceil((output + 1) * size, K) - output * size // K
    each = gradient.index_select(-1, output.flatten()).view(*gradient.shape[:-1], *output.shape)
    return (each * (holds / lengths).to(gradient.dtype)).sum(-1)


def _ceil(numerator: Tensor, denominator: int) -> Tensor:
    return (numerator + denominator - 1) // denominator


def maximum_gradient(gradient: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Return the gradient of `torch.nn.functional.adaptive_max_pool2d` with respect to its input.

    Args:
        gradient: The gradient of the output, ``[..., h, w]``.
        x: The input, ``[..., H, W]``; only its sizes are read.
        indices: The place h·W + w of each output's maximum in its plane, ``[..., h, w]``.
    """
    planes = x.shape[:-2].numel()
    result = gradient.new_zeros(planes, x.shape[-2] * x.shape[-1])
    plane = torch.arange(planes, device=x.device)[:, None]
    result.index_put_(
        (plane, indices.reshape(planes, -1)), gradient.reshape(planes, -1), accumulate=True
    )
    return result.view(x.shape)


_lock = threading.Lock()
_users: Counter[str] = Counter()
_registered: dict[str, object] = {}


@contextmanager
def repeatable_pooling(kind: str = "CUDA") -> Iterator[None]:
    """Let torch use these gradients in a block, on a kind of device; blocks may be nested."""
    with _lock:
        _users[kind] += 1
        if _users[kind] == 1:
            _registered[kind] = _kernels(kind)
    try:
        yield
    finally:
        with _lock:
            _users[kind] -= 1
            if not _users[kind]:
                del _registered[kind]  # torch's own kernels are used again


def _kernels(kind: str) -> object:
    """Register the gradients; torch uses them as long as the result lives."""
    result: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        result.impl("_adaptive_avg_pool2d_backward", average_gradient, kind)
        result.impl("adaptive_max_pool2d_backward", maximum_gradient, kind)
    return result

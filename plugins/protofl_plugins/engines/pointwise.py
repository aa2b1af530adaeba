"""1×1 convolutions of few images, as the matrix products that they are.

With one thread and fewer than 16 images PyTorch takes a path of its own for them, one small product
per image. On maps of a few pixels, as a ResNet's last stages have them, that costs a multiple of
one product over the pixels of all images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import protofl as pf
from torch import Tensor, nn
from torch.nn.functional import linear

FEW = 16
"""Images from which PyTorch takes oneDNN's convolution."""


@contextmanager
def pointwise_convolutions(job: pf.TrainJob) -> Iterator[None]:
    """Take the 1×1 convolutions of a client while it trains on a CPU.

    Args:
        job: All plain layers of `torch.nn.Conv2d` with 1×1 kernels are taken that it runs on a CPU
            in float32 (or wider).
    """
    taken = job.device.type == "cpu" and job.precision == "fp32"
    layers = [m for m in job.whole().modules() if _pointwise(m)] if taken else []
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _pointwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        type(module) is nn.Conv2d
        and "forward" not in vars(module)
        and module.kernel_size == module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Channels are the last axis of a channels-last tensor's memory, so nothing is copied there."""
    if len(x) >= FEW or x.ndim != 4:
        return nn.Conv2d.forward(layer, x)
    y = linear(x.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias)
    return y.permute(0, 3, 1, 2)

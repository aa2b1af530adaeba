"""float64 where a device has it: Apple's GPUs (``mps``) have none, and refuse such tensors."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices without float64."""


def has_float64(device: torch.device) -> bool:
    """Return True if tensors on a device can be float64.

    Args:
        device: A device.
    """
    return device.type not in WITHOUT_FLOAT64


def in_float64(x: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU if its own device has no float64.

    For sums and distances that would be wrong in float32. They are small or rare, so the copy costs
    little.

    Args:
        x: A tensor of any shape and dtype.
    """
    return x.double() if has_float64(x.device) else x.cpu().double()

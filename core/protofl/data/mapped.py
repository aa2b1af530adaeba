"""Large tensors in temporary files, so that the system can write their pages to the disk."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["mapped_zeros"]

LARGE = 64 << 20
"""Bytes from which tensors lie in a file."""


def mapped_zeros(shape: Sequence[int], folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of zeros, which lies in a temporary file if it is large.

    The file has no name, and is gone as soon as the tensor is.

    Args:
        shape: The shape of the tensor.
        folder: The folder of the file; created where missing.
        dtype: The type of its numbers.
    """
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return torch.zeros(*shape, dtype=dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)

"""Large arrays in temporary files, so that the system can write their pages to the disk."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["mapped_array", "mapped_zeros"]

LARGE = 64 << 20
"""Bytes from which an array lies in a file."""


def mapped_zeros(shape: Sequence[int], folder: Path) -> Tensor:
    """Return a float32 tensor of zeros, which lies in a temporary file if it is large.

    Args:
        shape: The shape of the tensor.
        folder: See `mapped_array`.
    """
    return torch.from_numpy(mapped_array(shape, np.dtype(np.float32), folder))


def mapped_array(shape: Sequence[int], dtype: np.dtype, folder: Path) -> np.ndarray:
    """Return an array of zeros or empty texts, which lies in a temporary file if it is large.

    The file has no name, and is gone as soon as the array is.

    Args:
        shape: The shape of the array.
        dtype: The type of its values.
        folder: The folder of the file; created where missing.
    """
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.zeros(shape, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    return np.frombuffer(memory, dtype).reshape(shape)

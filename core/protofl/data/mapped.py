"""Large arrays in temporary files, so that the system can write their pages to the disk."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.system.formatting import size_text

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
        folder: The folder of the file; created where missing. An array lies in memory if nothing
            can be written there.

    Raises:
        UsageError: The disk is full.
    """
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.zeros(shape, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a disk that is full later would end the process
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return np.zeros(shape, dtype)
        raise UsageError(
            f"{folder} has no room for {size_text(size)} of data",
            do="make room, or give another folder with --data-dir",
        ) from None
    return np.frombuffer(memory, dtype).reshape(shape)

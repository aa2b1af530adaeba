"""Random streams: every draw has a key, so it does not depend on earlier draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

StreamKey = str | int


def _digest(seed: int, keys: tuple[StreamKey, ...]) -> int:
    text = "/".join(str(key) for key in (seed, *keys))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def random_stream(seed: int, *keys: StreamKey) -> torch.Generator:
    """Return the CPU generator of a seed and keys; every call returns the same stream."""
    return torch.Generator().manual_seed(_digest(seed, keys))


def numpy_stream(seed: int, *keys: StreamKey) -> np.random.Generator:
    """Return the NumPy generator of a seed and keys."""
    return np.random.default_rng(_digest(seed, keys))


@contextmanager
def global_stream(seed: int, *keys: StreamKey) -> Iterator[None]:
    """Seed torch's global generators for a block (initial weights, dropout) and restore them."""
    value = _digest(seed, keys)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if _accelerated():
            torch.manual_seed(value)
        else:  # the CPU only: manual_seed takes a stack trace for each of three kinds of devices
            torch.default_generator.manual_seed(value)
        yield


@lru_cache
def _accelerated() -> bool:
    """Return True if this machine has an accelerator, which has a generator of its own."""
    return torch.accelerator.is_available()

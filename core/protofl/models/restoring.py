"""Models that are used and afterwards what they were before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore parameters and buffers after the block, where it fails too."""
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)

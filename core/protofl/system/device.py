"""The device of a run, and settings of torch for a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from protofl.errors import UsageError


def device_of(text: str) -> torch.device:
    """Return the device that ``--device`` names, and check that torch can compute on it.

    Raises:
        UsageError: The device is unknown, missing, or not usable with this torch.
    """
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use = "use auto, cpu, cuda or cuda:N"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text} is not a device", do=use) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: found no CUDA device", do="use --device cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        raise UsageError(f"--device {text}: this torch can't compute there", do=use) from None
    return device


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads in a block; rounding depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_kernels(enabled: bool) -> Iterator[None]:
    """Make torch use only deterministic CUDA kernels in a block, if enabled."""
    if not enabled or torch.are_deterministic_algorithms_enabled():
        # Setting the same value would import torch's compiler, which takes more than a second.
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: autocast for ``bf16``, nothing for ``fp32``."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()

"""State of torch that any code in a process may change for all code after it.

This is the default dtype, the default device, grad mode, inference mode and autocast. A run sets
them itself, so that its results do not depend on the program that calls it, and restores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_KINDS = ("cpu", "cuda")
"""Types of devices that have autocast."""

_dtype = torch.float32
"""Default dtype in which runs of this process compute, see `computing_in`."""

_entered: list[AbstractContextManager[Any]] = []
"""Entered contexts that undo what was left; torch leaves a context when its object is deleted."""


@dataclass
class TorchState:
    """The state of torch in this thread at one moment.

    Attributes:
        dtype: The default dtype.
        device: The default device.
        grad: Whether gradients are recorded.
        inference: Whether inference mode is on.
        casts: {type of device: (whether autocast is on, its dtype)}.
        depth: How many autocast contexts are open.
        caches: Whether autocast caches weights.
    """

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    device: torch.device = field(default_factory=lambda: _default_device())
    grad: bool = field(default_factory=torch.is_grad_enabled)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    casts: dict[str, tuple[bool, torch.dtype]] = field(
        default_factory=lambda: {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in _KINDS
        }
    )
    depth: int = field(default_factory=lambda: _autocast_depth())
    caches: bool = field(default_factory=torch.is_autocast_cache_enabled)

    def restore(self) -> None:
        """Restore the state."""
        now = TorchState()
        if now.dtype != self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            torch.set_default_device(None)
            if _default_device() != self.device:
                _enter(self.device)
        if now.inference != self.inference:
            _enter(torch.inference_mode(self.inference))
        torch.set_grad_enabled(self.grad)
        if (now.casts, now.depth, now.caches) != (self.casts, self.depth, self.caches):
            self._restore_autocast(now.depth)

    def _restore_autocast(self, depth: int) -> None:
        for kind, (enabled, dtype) in self.casts.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.caches)
        for _ in range(depth - self.depth):
            torch.autocast_decrement_nesting()
        for _ in range(self.depth - depth):
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()


def _default_device() -> torch.device:
    """Return the device of new tensors; torch 2.6's own function does not see ``torch.device``."""
    return torch.empty(0).device


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _enter(context: Any) -> None:  # noqa: ANN401 - torch.device is a context without a type
    context.__enter__()
    _entered.append(context)


@contextmanager
def standard_torch() -> Iterator[None]:
    """Give a block the state of torch in which runs compute, and restore the caller's at its end.

    The default dtype is float32 and the default device the CPU; gradients are recorded; inference
    mode and autocast are off. It is also a decorator.
    """
    before = TorchState()
    try:
        with ExitStack() as until:
            if before.inference:
                until.enter_context(torch.inference_mode(False))
            if before.device.type != "cpu":
                until.enter_context(torch.device("cpu"))
            torch.set_default_dtype(_dtype)
            torch.set_grad_enabled(True)
            for kind, (enabled, _) in before.casts.items():
                if enabled:
                    torch.set_autocast_enabled(kind, False)
            if before.depth:  # a cache lives until the outermost autocast ends: weights grow stale
                torch.set_autocast_cache_enabled(False)
                torch.clear_autocast_cache()
            yield
    finally:
        before.restore()


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Let runs of this process compute in another default dtype, for tests in float64."""
    global _dtype
    before, default = _dtype, torch.get_default_dtype()
    _dtype = dtype
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        _dtype = before
        torch.set_default_dtype(default)

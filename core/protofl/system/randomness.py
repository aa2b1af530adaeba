"""Random streams: every draw has a key, so it does not depend on earlier draws."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from protofl.errors import RunFailure

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
    with torch.random.fork_rng(devices=_cuda_devices()), _run.block():
        if _accelerated():
            torch.manual_seed(value)
        else:  # the CPU only: manual_seed takes a stack trace for each of three kinds of devices
            torch.default_generator.manual_seed(value)
        yield


@lru_cache
def _cuda_devices() -> range:
    """Return the numbers of the CUDA devices. To count them takes 0.1 ms on a machine with none."""
    return range(torch.cuda.device_count())


@lru_cache
def _accelerated() -> bool:
    """Return True if this machine has an accelerator, which has a generator of its own."""
    return torch.accelerator.is_available()


# --- one process, one run at a time ---------------------------------------------------------------

WAITING = "waiting for another run of this process (pf.sweep computes several runs at once)"
"""Line for a run that waits in `one_run`."""

OTHERS = (
    "another thread of this program draws from torch's global generator",
    "the run draws weights and dropout from it, so its results could not be repeated",
    "give the thread a torch.Generator of its own, or start the run in another process: "
    "protofl run, or pf.sweep",
)
"""Text of the error about draws of another thread."""

WINDOW = 0.1
"""Seconds for which `others_draw` waits for draws of other threads."""


class _Run:
    """The run that computes in this process, and the state of torch's generator between blocks.

    Attributes:
        moved: Whether the generator moved between two blocks of `global_stream`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.moved = False
        self._thread, self._depth = 0, 0
        self._left: Tensor | None = None

    def begin(self) -> None:
        """Watch the generator in this thread from now on."""
        self._thread, self._left, self.moved = threading.get_ident(), None, False

    @contextmanager
    def block(self) -> Iterator[None]:
        """Compare the generator's state with the one after the block before."""
        if threading.get_ident() != self._thread:
            yield
            return
        state = torch.get_rng_state()
        if not self._depth:
            self.moved |= self._left is not None and not torch.equal(state, self._left)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._left = state


_run = _Run()


@contextmanager
def one_run(wait: Callable[[], None]) -> Iterator[None]:
    """Let one run of this process compute at a time, since torch's generators are the process's.

    Args:
        wait: Called before waiting for a run in another thread.
    """
    if not _run.lock.acquire(blocking=False):
        wait()
        _run.lock.acquire()
    try:
        _run.begin()
        yield
    finally:
        _run.lock.release()


def others_draw(state: Callable[[], object]) -> bool:
    """Return True if the state of a generator changes while this thread does nothing."""
    before = state()
    time.sleep(WINDOW)
    return state() != before


def expect_no_other_draws() -> None:
    """Check that no other thread draws from the generator that the run seeds.

    A callback of the run's own thread may draw between its blocks. Its draws change no result.

    Raises:
        RunFailure: Another thread draws, so a second run would have other results.
    """
    if not _run.moved:
        return
    _run.moved = False
    if others_draw(lambda: torch.get_rng_state().numpy().tobytes()):
        raise RunFailure(*OTHERS)

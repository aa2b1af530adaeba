"""Recorders: a step on fixed memory, to be run again and again.

On a CUDA device the step is captured in a CUDA graph, and running it again is one launch. On a
CPU the step itself runs again on the same memory, so that all that surrounds a capture is the
same in both places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

WARM_UP = 3
"""Runs before a capture; PyTorch's notes on CUDA graphs ask for a few on a side stream, in which
libraries choose their algorithms and take their workspaces."""


class Recorder(Protocol):
    """A recorded step."""

    def replay(self) -> None:
        """Run the step on what its memory holds now."""
        ...


class Plain:
    """The step itself, run again.

    Args:
        step: Reads and writes fixed memory alone.
        warm_up: Runs before the first replay, as a capture needs them.
    """

    def __init__(self, step: Callable[[], None], warm_up: int = 0) -> None:
        for _ in range(warm_up):
            step()
        self.replay = step


class CUDAGraph:
    """The step captured in a CUDA graph.

    Args:
        step: Reads and writes fixed memory alone, launches kernels and never waits for them.
        pool: The memory pool of another graph that never runs at the same time; None for one of
            its own.
    """

    def __init__(self, step: Callable[[], None], pool: Any = None) -> None:  # noqa: ANN401
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        current.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            step()

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self.graph.replay()

    @property
    def pool(self) -> Any:  # noqa: ANN401 - an opaque handle
        """Its memory pool, for graphs that never run at the same time."""
        return self.graph.pool()

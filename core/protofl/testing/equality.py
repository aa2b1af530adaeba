"""Two runs held against each other: the weights and losses of one engine and of the reference.

In float64 over a round the order of sums shows as some 1e-14; in float32 rounding alone drives two
runs apart within a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import protofl as pf
from protofl.federation.events import Event, Note
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.system.torch_state import computing_in
from protofl.testing import toy

RAGGED = [[6, 5, 4, 0], [0, 7, 0, 6], [9, 0, 3, 2], [4, 4, 4, 4], [1, 0, 2, 0], [5, 6, 0, 6]]
"""Six clients: 15, 13, 14, 16, 3 and 17 samples in batches of 5."""

EXACT = 1e-9
"""Largest relative difference in float64 over one round."""

ONE_STEP = 2e-5
"""Largest relative difference in float32 over one step."""


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.convolution(x)))


def _residual(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    # No bias before BatchNorm: its gradient is 0 but for rounding, which Adam blows up.
    return nn.Sequential(
        nn.Conv2d(sample.shape[0], 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        _Residual(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, K),
    )


def _dropout(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample.shape), K), nn.Dropout(0.5))


RESIDUAL = toy.architecture("residual", _residual)
"""A convolution, BatchNorm, a projection and a residual: what ResNets are made of."""

DROPOUT = toy.architecture("dropout", _dropout)
"""A net whose training draws from torch's global generators."""


def ragged_images() -> Any:  # noqa: ANN401 - protofl.datasets.Dataset
    """Images of six clients with unlike numbers of samples."""
    images = toy.make_images(RAGGED, [[1, 1, 1, 1]] * 6)
    return replace(images, x=images.x.to(torch.float32))


@contextmanager
def double_precision() -> Iterator[None]:
    """All models, samples and draws in float64 inside the block."""
    narrow = torch.Tensor.float
    with computing_in(torch.float64):
        try:
            torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
            yield
        finally:
            torch.Tensor.float = narrow  # type: ignore[method-assign]


class Run:
    """A run of some rounds of a plan in this process.

    The first ``start`` of them are trained by ``eager``, so that what the server has learned by
    then is the same to the last bit.

    Attributes:
        lines: The record of the rounds.
        notes: What the engine said.
    """

    def __init__(self, plan: Plan, rounds: int = 2, start: int = 0) -> None:
        self.plan, self.notes = plan, list[str]()
        self.pool = toy.WatchedPool(plan)
        self.host = self.pool.host
        self.federation = Federation(plan, self.pool, self._progress)
        self.federation.start_trial(0)
        self.host.plan = plan.choosing("engine", "eager")
        self.lines = [self.federation.round(number)[0] for number in range(start)]
        self.host.plan = plan
        self.lines += [self.federation.round(number)[0] for number in range(start, rounds)]

    def _progress(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, buffers and trained modules of all clients, by client and name."""
        return {
            f"{client}/{name}": tensor.detach().clone()
            for client in range(self.plan.info.num_clients)
            for name, tensor in self._whole(client).state_dict().items()
        }

    def _whole(self, client: int) -> nn.ModuleDict:
        state = self.host.client(client)
        modules = {n.replace("/", "-"): s.module for n, s in state.slots() if not s.temporary}
        return nn.ModuleDict({"model": state.model, **modules})


def worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of tensors, relative to each tensor's largest entry.

    Entries below 1e-3 are measured against that: the mean of a linear layer's output of
    normalised features is 0 but for rounding.
    """
    assert a.keys() == b.keys()
    differences = {
        name: float((a[name] - b[name]).abs().max() / a[name].abs().max().clamp(min=1e-3))
        for name in a
        if a[name].numel() and not torch.equal(a[name], b[name])
    }
    return max(differences.values(), default=0.0)


def assert_equal_runs(actual: Run, expected: Run, tolerance: float) -> None:
    """Weights and loss terms agree to a relative tolerance.

    Raises:
        AssertionError: They don't; the message says by how much.
    """
    apart = worst(expected.tensors(), actual.tensors())
    if not apart <= tolerance:
        raise AssertionError(f"weights differ by {apart:.1e}, {tolerance:.0e} is allowed")
    for line, other in zip(expected.lines, actual.lines, strict=True):
        ours, theirs = line["loss_terms"], other["loss_terms"]
        if ours.keys() != theirs.keys():
            raise AssertionError(f"loss terms are {[*theirs]}, by eager {[*ours]}")
        for label, value in ours.items():
            apart = abs(value - theirs[label]) / max(abs(value), 1e-3)
            if not apart <= tolerance:
                raise AssertionError(f"the term {label} differs by {apart:.1e}")

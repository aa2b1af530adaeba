"""Comparison of a captured step with its own code: both run once, from the same memory.

**Rounding.** Some kernels of a GPU add numbers in an order that changes from run to run, and nets
with BatchNorm amplify that: in a fresh ResNet with batches of ten, a change of the weights in the
seventh digit changes a loss by 1 to 15 % within five steps. So how much rounding changes a step is
measured: its code runs a second time, from weights that are a little different (`NOISE`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

OTHER_WEIGHTS = 2.0**-3
"""Relative change of weights between a capture and its comparison: a graph that repeats a number of
the capture gives another result than the code."""

NOISE = 2.0**-18
"""Relative change of weights by which rounding is measured: the error of a float32 sum of 4,096
terms, √(2¹²) · 2⁻²⁴, such as the outputs and gradients of a layer are."""

MARGIN = 6.0
"""How many times as much as `NOISE` a graph may change a step. Both differences are single draws of
about the same size: with the nets of `htfe8` on a CPU, sums in another order changed a client's
losses up to 2.5 times as much, and a tensor's update 2.1 times."""

LEAST = 2.0**-10
"""Relative difference that is always allowed: twice the unit roundoff of TF32. On an H200, wrong
graphs changed a loss by 0.0075 of its size or more."""

STORED = 2.0**-22
"""Difference of an update that is always allowed, in sizes of the weights that store it: four times
the unit roundoff of float32."""


@dataclass(frozen=True)
class Step:
    """Results of a step.

    Attributes:
        losses: {loss term: its value []}.
        before: {name: a weight, buffer or moment as it was}.
        after: The same after the step.
    """

    losses: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]

    def update(self, name: str) -> Tensor:
        """Return the change of a tensor."""
        return self.after[name] - self.before[name]


def moved(weight: Tensor, noise: float) -> Tensor:
    """Return weights for a comparison: others than those of a capture, and rounded differently."""
    places = torch.arange(weight.numel(), device=weight.device)
    spread = places.cos().view_as(weight).to(weight.dtype)  # −1 to 1 in no order, always the same
    return weight * (1 + OTHER_WEIGHTS + noise * spread)


def difference(code: Step, rounded: Step, graph: Step) -> str:
    """Return where a graph's results differ from those of the code by more than rounding.

    A loss term's difference is relative to the sum of all terms (a small term has an error of the
    size of the large ones, because features are common to all), an update's to its norm, or to what
    its norm would be with the mean square of all updates.

    Args:
        code: The step's code.
        rounded: The same from weights that differ by `NOISE`.
        graph: The captured step.

    Returns:
        A clause that names the loss term or tensor; empty if they agree.
    """
    steps = code, rounded, graph
    losses = _norms([tuple(step.losses[label] for step in steps) for label in code.losses])
    total = sum(norm for norm, _, _ in losses)
    for label, (norm, noise, error) in zip(code.losses, losses, strict=True):
        if math.isfinite(norm) and not error <= max(MARGIN * noise, LEAST * total):
            value, other = (float(step.losses[label]) for step in (graph, code))
            return f"loss term {label} is {value:.5g} and not {other:.5g}"
    updates = _norms([tuple(step.update(name) for step in steps) for name in code.after])
    sizes = [norm for norm, _, _ in _norms([(t, t, t) for t in code.before.values()])]
    counts = [tensor.numel() for tensor in code.after.values()]
    square = sum(norm**2 for norm, _, _ in updates) / max(1, sum(counts))
    scales = [
        max(norm, math.sqrt(square * count), 1e-300)
        for (norm, _, _), count in zip(updates, counts, strict=True)
    ]
    noises = [noise / scale for (_, noise, _), scale in zip(updates, scales, strict=True)]
    usual = statistics.median(noises) if noises else 0.0
    rows = zip(code.after, updates, sizes, scales, noises, strict=True)
    for name, (norm, _, error), size, scale, noise in rows:
        # Each tensor has its own noise, and that of most where its own is smaller by chance.
        allowed = scale * max(MARGIN * max(noise, usual), LEAST) + STORED * size
        if math.isfinite(norm) and not error <= allowed:
            return f"the update of {name} differs by {error / scale:.1%}"
    return ""


def _norms(rows: list[tuple[Tensor, ...]]) -> list[tuple[float, float, float]]:
    """Return the norm of the first tensor of each row, and of its difference to the others."""
    found = [
        torch.stack([t.double().norm() for t in (one, rounded - one, graph - one)])
        for one, rounded, graph in rows
    ]
    return [(a, b, c) for a, b, c in torch.stack(found).tolist()] if found else []

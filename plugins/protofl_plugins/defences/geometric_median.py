"""Geometric median of the clients' prototypes.

Pillutla et al., "Robust Aggregation for Federated Learning" (IEEE TSP 2022), class by class and
unweighted:

    P̄^c = argmin_v Σ_{i in N_c} ‖v − P_i^c‖

by Weiszfeld's iteration, until no class's point moves by more than ``TOLERANCE`` of the median
distance to it (`geometric_median`). The paper smooths the distances near 0; here an iterate on
a prototype takes Vardi and Zhang's step, which needs no constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.defences.coordinate_median import coordinate_median
from protofl_plugins.defences.prototype_uploads import (
    DefenceConfig,
    mean_of_rows,
    of_known_classes,
    stacked,
    with_means,
)


class GeometricMedian:
    """Defence: the point nearest to all of a class's prototypes (Pillutla et al., 2022)."""

    donates = ("server_aggregate",)

    class Config(DefenceConfig):
        """Options; shared: absent."""

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Replace each prototype by the geometric median of its class."""
        rows, present = stacked(server, uploads)
        return with_means(uploads, geometric_median(rows, present))

    server_aggregate = staticmethod(mean_of_rows)


TOLERANCE, ITERATIONS = 1e-7, 1000
"""The last step, in median distances, and the most steps."""

LEAST = torch.finfo(torch.float64).tiny
"""The smallest divisor, as a sum may be 0."""


def geometric_median(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the point of every class with the smallest sum of distances to its prototypes.

    By Weiszfeld's iteration with the step of Vardi and Zhang (PNAS 2000) for an iterate that lies
    on a prototype, from the coordinate-wise median, in double precision. With T the mean weighted
    by the inverse distances, η prototypes at y itself and r the length of the sum of unit vectors
    to the others,

        y ← (1 − min(1, η/r))·T + min(1, η/r)·y

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.

    Returns:
        [C, K], 0 for classes that no client has.
    """
    points = pf.functional.in_float64(prototypes)
    present = present.to(points.device)
    mask, counts = present.unsqueeze(2), present.sum(0)
    points = points.masked_fill(~mask, 0.0)
    y = coordinate_median(points, present)
    middle = ((counts - 1).clamp(min=0) // 2).reshape(1, -1, 1)
    for _ in range(ITERATIONS):
        towards = (points - y).masked_fill(~mask, 0.0)
        distance = towards.norm(dim=2, keepdim=True)
        ordered = distance.masked_fill(~mask, torch.inf).sort(dim=0).values
        spread = ordered.gather(0, middle).squeeze(0)
        at_point = mask & (distance <= 1e-12 * spread)
        weight = torch.where(mask & ~at_point, 1.0 / distance, 0.0)
        pull = (weight * towards).sum(0)
        stays = at_point.sum(0) / pull.norm(dim=1, keepdim=True).clamp(min=LEAST)
        step = (1 - stays.clamp(max=1)) * pull / weight.sum(0).clamp(min=LEAST)
        y = y + step
        if bool((step.norm(dim=1, keepdim=True) <= TOLERANCE * spread).all()):
            break
    return of_known_classes(y, counts).to(prototypes)

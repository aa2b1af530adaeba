"""Distances between distributions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape, result_dtype
from protofl.functional.distances import squared_distances


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float] = (10, 15, 20, 50)) -> Tensor:
    """The squared maximum mean discrepancy of two samples: FedKTL Eq. 3.

    The kernel is κ(a, b) = Σ_w exp(−‖a − b‖²/2w) over the bandwidths w, and the estimate is the
    biased one, diagonals in: mean κ(x, x) + mean κ(y, y) − 2 mean κ(x, y), which is never
    negative but for rounding.

    Args:
        x: [N, H].
        y: [M, H].
        bandwidths: The w, in the unit of squared distance.

    Returns:
        Scalar, without unit.

    Raises:
        ValueError: A shape or dtype is wrong, a sample is empty, or a bandwidth is missing or not
            positive.
    """
    check_shape("x", x, "N H")
    check_shape("y", y, "M H", H=x.shape[1])
    check_floating(x=x, y=y)
    if x.shape[0] == 0 or y.shape[0] == 0:
        raise ValueError(f"x and y need a row each: got {list(x.shape)} and {list(y.shape)}")
    if not bandwidths or not all(bandwidth > 0 for bandwidth in bandwidths):
        raise ValueError(f"bandwidths must be positive numbers, at least one: got {bandwidths!r}")

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = squared_distances(a, b)
        kernels = [(squared / (-2.0 * bandwidth)).exp() for bandwidth in bandwidths]
        return torch.stack(kernels).sum(0).mean()

    discrepancy = mean_kernel(x, x) + mean_kernel(y, y) - 2.0 * mean_kernel(x, y)
    return discrepancy.to(result_dtype(x, y))

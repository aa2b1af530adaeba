"""Losses of FedKTL's server: distances within classes, and between distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from protofl.functional._checks import (
    check_classes,
    check_floating,
    check_labels,
    check_shape,
    result_dtype,
)
from protofl.functional.distances import squared_distances


def centroid_distance(
    vectors: Tensor,
    labels: Tensor,
    centroids: Tensor,
    average: Literal["class", "batch"] = "class",
) -> Tensor:
    """L_MSE, the mean squared error of vectors to the centroids of their classes: FedKTL Eq. 2.

    With ℓ the mean over H of squared differences, and n_c of the N rows of class c:

    * ``class``: 1/C' Σ_c 1/n_c Σ_{i of class c} ℓ(Q_i, Q^c), over the C' classes that occur.
    * ``batch``: 1/N Σ_i ℓ(Q_i, Q^c), the plain mean, as in published code.

    Where the centroids are the means of these very rows (`class_means`) the gradient through them
    is 0, as deviations from a mean sum to 0.

    Args:
        vectors: Q [N, H].
        labels: [N] integers in 0…C−1.
        centroids: Q^c [C, H]; the rows of classes that don't occur are not looked at.
        average: One of the two above.

    Returns:
        Scalar; 0 where N = 0.

    Raises:
        ValueError: A shape, dtype or ``average`` is wrong.
    """
    check_classes(vectors, centroids, "vectors")
    check_labels("labels", labels, vectors.shape[0])
    if average not in ("class", "batch"):
        raise ValueError(f"average must be 'class' or 'batch': got {average!r}")
    dtype, labels = result_dtype(vectors, centroids), labels.long()
    rows = (vectors.to(dtype) - centroids.to(dtype)[labels]).square().mean(1)
    if average == "batch":
        return rows.sum() / max(len(rows), 1)
    counts = rows.new_zeros(len(centroids)).index_add(0, labels, torch.ones_like(rows))
    return (rows / counts[labels]).sum() / (counts > 0).sum().clamp(min=1)


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

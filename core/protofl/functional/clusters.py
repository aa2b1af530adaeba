"""Clusters of prototypes without a number of clusters: FINCH."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofl.functional._checks import check_floating, check_shape, result_dtype
from protofl.functional.prototypes import class_means

BLOCK = 1024
"""Rows whose cosines with all others are held at once."""


def finch(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The last partition of FINCH with cosines that has more than one cluster.

    Sarfraz et al., "Efficient Parameter-Free Clustering Using First Neighbor Relations", CVPR 2019.
    Each row is linked with its nearest other one (Eq. 1), and the connected rows are a cluster. The
    clusters' means are clustered in the same way, until all would be one. If already the first
    partition is one cluster, it is the result.

    Args:
        rows: [N, K].

    Returns:
        The means of the clusters [n, K], in the order of their first rows, and the cluster of each
        row, [N] int64.

    Raises:
        ValueError: The shape or dtype is wrong.
    """
    check_shape("rows", rows, "N K")
    check_floating(rows=rows)
    rows = rows.to(result_dtype(rows))
    means, clusters = rows, torch.arange(len(rows), device=rows.device)
    while len(means) > 1:
        merged = _connected(_nearest(means))[clusters]
        count = int(merged.max()) + 1
        if count == 1 and len(means) < len(rows):
            break
        means, clusters = class_means(rows, merged, count)[0], merged
    return means, clusters


def _nearest(rows: Tensor) -> Tensor:
    """Return the nearest other row of each by the cosine, the first of equal ones, [N]."""
    unit = normalize(rows.double(), dim=1)
    found = list[Tensor]()
    for start in range(0, len(unit), BLOCK):
        cosines = unit[start : start + BLOCK] @ unit.T
        cosines.diagonal(start).fill_(-torch.inf)
        found.append(cosines.argmax(1))
    return torch.cat(found)


def _connected(neighbour: Tensor) -> Tensor:
    """Return the cluster of each row, [N] from 0 in the order of first rows, of links [N].

    Following the links leads into one circle for each cluster. Each step doubles the links that are
    followed; the smallest row of the circle names the cluster.
    """
    end, least = neighbour, torch.arange(len(neighbour), device=neighbour.device)
    for _ in range(len(neighbour).bit_length()):
        least = torch.minimum(least, least[end])
        end = end[end]
    _, cluster = torch.unique(least[end], return_inverse=True)
    first = torch.full_like(cluster, len(cluster)).scatter_reduce(
        0, cluster, torch.arange(len(cluster), device=cluster.device), "amin"
    )
    return first[: int(cluster.max()) + 1].argsort().argsort()[cluster]

"""Clusters of prototypes by FINCH, and a contrast with several prototypes of each class.

The prototypes of all classes are a table n×K with the class of each row, [n]: how often a class
occurs is its number of prototypes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

import protofl as pf
from protofl import functional as F

BLOCK = 1024
"""Rows whose cosines with all others are held at once."""

Clusters = Literal["finch", "first", "mean"]
"""Prototypes of a class: means of FINCH's last partition or of its first, or one mean of all."""


def clustered(rows: Tensor, labels: Tensor, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """Return the prototypes of each class of rows N×K, n×K, and the class of each, [n]."""
    prototypes, classes = list[Tensor](), torch.unique(labels)
    for c in classes:
        class_rows = rows[labels == c]
        if clusters == "mean":
            prototypes.append(class_rows.mean(0, keepdim=True))
        else:
            prototypes.append(finch(class_rows, last=clusters == "finch")[0])
    counts = torch.tensor([len(P) for P in prototypes], device=labels.device)
    return torch.cat(prototypes), classes.repeat_interleave(counts)


def finch(rows: Tensor, *, last: bool = True) -> tuple[Tensor, Tensor]:
    """Return the last partition of FINCH with cosines that has more than one cluster, or its first.

    Sarfraz et al., "Efficient Parameter-Free Clustering Using First Neighbor Relations", CVPR 2019.
    Each row is linked with its nearest other one (Eq. 1), and the connected rows are a cluster. The
    clusters' means are clustered in the same way, until all would be one. If already the first
    partition is one cluster, it is the result.

    Args:
        rows: N×K.
        last: False for the first partition.

    Returns:
        The means of the clusters, n×K, in the order of their first rows, and the cluster of each
        row, [N] int64.
    """
    means, clusters = rows, torch.arange(len(rows), device=rows.device)
    while len(means) > 1:
        merged = _connected(_nearest(means))[clusters]
        count = int(merged.max()) + 1
        if count == 1 and len(means) < len(rows):
            break
        means, clusters = F.class_means(rows, merged, count)[0], merged
        if not last:
            break
    return means, clusters


def _nearest(rows: Tensor) -> Tensor:
    """Return the nearest other row of each by the cosine, the first of equal ones, [N]."""
    unit = normalize(F.in_float64(rows), dim=1)
    nearest = list[Tensor]()
    for start in range(0, len(unit), BLOCK):
        cosines = unit[start : start + BLOCK] @ unit.T
        cosines.diagonal(start).fill_(-torch.inf)
        nearest.append(cosines.argmax(1))
    return torch.cat(nearest).to(rows.device)


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


def with_absent_rows(server: pf.Server[Any], P: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return a round's prototypes n×K and their classes [n], with those absent from it, by class.

    A class that no client of the round has keeps the prototypes of the server's global state.
    """
    if "prototypes" in server.global_state:
        old, old_classes = server.global_state.rows("prototypes")
        absent = ~torch.isin(old_classes, classes)
        P, classes = torch.cat([P, old[absent]]), torch.cat([classes, old_classes[absent]])
    order = classes.argsort(stable=True)
    return P[order], classes[order]


def contrast(s: Tensor, y: Tensor, classes: Tensor) -> Tensor:
    """Return −log( Σ_{P of class y} e^s / Σ_P e^s ) of each sample, [B]; 0 without such P.

    Args:
        s: Similarities of samples and prototypes, B×n.
        y: Labels of the samples, [B].
        classes: The class of each prototype, [n].
    """
    same_class = y.unsqueeze(1) == classes
    others = ~same_class & same_class.any(1, keepdim=True)
    return s.logsumexp(1) - s.masked_fill(others, -torch.inf).logsumexp(1)

"""Spreads of prototypes: distances within and between classes, and similarity of clients."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from protofl.functional import class_means
from protofl.functional.distances import euclidean_distances

Similarity = Literal["pearson", "spearman", "cka"]


def intra_class_distances(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return, by class, the mean Euclidean distance of its rows to their mean.

    Args:
        features: [N, K], features of samples, or prototypes of clients.
        labels: [N] integers in 0…C−1.
        num_classes: C.

    Returns:
        [C], in the unit of the features; NaN for a class without rows.
    """
    rows, labels = features, labels.long()
    means, counts = class_means(rows, labels, num_classes)
    distances = torch.linalg.vector_norm(rows - means[labels], dim=1)
    sums = distances.new_zeros(num_classes).index_add(0, labels, distances)
    return torch.where(counts > 0, sums / counts.clamp_min(1), torch.nan)


def inter_class_distances(prototypes: Tensor, known: Tensor) -> Tensor:
    """Return, by class, the mean Euclidean distance of its prototype to the others.

    Args:
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.

    Returns:
        [C], in the unit of the prototypes; NaN for an unknown class, or the only known one.
    """
    rows = prototypes.masked_fill(~known.unsqueeze(1), 0.0)
    other = ~torch.eye(known.shape[0], dtype=torch.bool, device=known.device)
    pairs = known.unsqueeze(0) & known.unsqueeze(1) & other
    sums = euclidean_distances(rows, rows).masked_fill(~pairs, 0.0).sum(1)
    means = torch.where(pairs.any(1), sums / pairs.sum(1).clamp_min(1), torch.nan)
    return means.to(torch.promote_types(prototypes.dtype, torch.float32))


def distances_by_client(
    prototypes: Tensor, known: Tensor, centres: Tensor, centres_known: Tensor
) -> Tensor:
    """Return, by client, the mean Euclidean distance of its prototypes to the global ones.

    φ(P_i^c, P̂^c) of FedTGP Eq. 11 and d of FedSA Eq. 5, averaged over the classes that both have.

    Args:
        prototypes: [M, C, K]; unknown rows are not looked at.
        known: [M, C] bool, the classes that each client has.
        centres: [C, K], global prototypes or anchors.
        centres_known: [C] bool.

    Returns:
        [M], in the unit of the prototypes; NaN for a client without such a class.
    """
    both = known & centres_known
    apart = (prototypes - centres).masked_fill(~both.unsqueeze(2), 0.0)
    sums = torch.linalg.vector_norm(apart, dim=2).sum(1)
    return torch.where(both.any(1), sums / both.sum(1).clamp_min(1), torch.nan)


def client_similarity(prototypes: Tensor, known: Tensor, kind: Similarity = "pearson") -> Tensor:
    """Return the similarity of each pair of clients' prototypes, over their common classes.

    ``pearson`` and ``spearman`` correlate all numbers of the shared rows, as they are or their
    ranks (ties share the mean one), so both clients' features have to mean the same. ``cka`` is the
    linear centred kernel alignment of Kornblith et al., "Similarity of Neural Network
    Representations Revisited" (ICML 2019), ‖YᵀX‖² / (‖XᵀX‖·‖YᵀY‖) of centred rows, which a
    rotation or a common factor of one client's features doesn't change: it compares how classes lie
    to each other in models that share no coordinates.

    Args:
        prototypes: [M, C, K]; unknown rows are not looked at.
        known: [M, C] bool, the classes that each client has.
        kind: ``pearson``, ``spearman`` or ``cka``.

    Returns:
        [M, M] float64, symmetric, from −1 to 1 (``cka`` from 0); NaN where two share no class
        (``cka``: fewer than three, as two rows are always alike), or the numbers of one are all
        the same.

    Raises:
        ValueError: ``kind`` is none of the three.
    """
    if kind not in get_args(Similarity):
        raise ValueError(f"kind must be 'pearson', 'spearman' or 'cka': got {kind!r}")
    count = prototypes.shape[0]
    result = torch.full((count, count), torch.nan, dtype=torch.float64)
    rows, masks = prototypes.detach().double().cpu(), known.cpu()
    for a in range(count):
        for b in range(a, count):
            shared = masks[a] & masks[b]
            x, y = rows[a][shared], rows[b][shared]
            if kind == "cka":
                value = _linear_cka(x, y)
            elif kind == "spearman":
                value = _correlation(_ranks(x.flatten()), _ranks(y.flatten()))
            else:
                value = _correlation(x.flatten(), y.flatten())
            result[a, b] = result[b, a] = value
    return result


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's r of two vectors; NaN for 0/0."""
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return torch.dot(x, y) / scale if scale > 0 else torch.tensor(torch.nan)


def _ranks(x: Tensor) -> Tensor:
    """The rank of each number, ties the mean of theirs."""
    _, which, counts = torch.unique(x, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    mean: Tensor = ends - (counts - 1) / 2
    return mean[which]


def _linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Linear CKA of rows of the same classes; NaN of fewer than three, or of one repeated."""
    if len(x) < 3:
        return torch.tensor(torch.nan)
    x, y = x - x.mean(0), y - y.mean(0)
    # By Gram matrices n×n of the few classes; ‖YᵀX‖² = ⟨XXᵀ, YYᵀ⟩.
    first, second = x @ x.T, y @ y.T
    scale = first.norm() * second.norm()
    return (first * second).sum() / scale if scale > 0 else torch.tensor(torch.nan)

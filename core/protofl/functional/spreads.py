"""Distances of features and prototypes, within and between classes."""

from __future__ import annotations

import torch
from torch import Tensor

from protofl.functional._checks import (
    check_classes,
    check_floating,
    check_labels,
    check_mask,
    check_shape,
    result_dtype,
)
from protofl.functional.distances import euclidean_distances
from protofl.functional.prototypes import class_means


def intra_class_distances(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return, by class, the mean Euclidean distance of its rows to their mean.

    Args:
        features: [N, K], features of samples, or prototypes of clients.
        labels: [N] integers in 0…C−1.
        num_classes: C.

    Returns:
        [C], in the unit of the features; NaN for a class without rows.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("features", features, "N K")
    check_floating(features=features)
    check_labels("labels", labels, features.shape[0])
    labels = labels.long()
    rows = features.to(result_dtype(features))
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

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("prototypes", prototypes, "C K")
    check_floating(prototypes=prototypes)
    check_mask("known", known, prototypes.shape[0])
    rows = prototypes.masked_fill(~known.unsqueeze(1), 0.0)
    other = ~torch.eye(known.shape[0], dtype=torch.bool, device=known.device)
    pairs = known.unsqueeze(0) & known.unsqueeze(1) & other
    sums = euclidean_distances(rows, rows).masked_fill(~pairs, 0.0).sum(1)
    found = torch.where(pairs.any(1), sums / pairs.sum(1).clamp_min(1), torch.nan)
    return found.to(result_dtype(prototypes))


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

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("prototypes", prototypes, "M C K")
    check_classes(prototypes.flatten(0, 1), centres, "prototypes")
    check_mask("centres_known", centres_known, prototypes.shape[1])
    check_shape("known", known, "M C", M=prototypes.shape[0], C=prototypes.shape[1])
    both = known & centres_known
    dtype = result_dtype(prototypes, centres)
    apart = (prototypes.to(dtype) - centres.to(dtype)).masked_fill(~both.unsqueeze(2), 0.0)
    sums = torch.linalg.vector_norm(apart, dim=2).sum(1)
    return torch.where(both.any(1), sums / both.sum(1).clamp_min(1), torch.nan)

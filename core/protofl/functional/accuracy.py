"""Accuracy of a federation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofl.functional._checks import check_labels, check_shape


def accuracy_over_clients(scores: Sequence[tuple[int, int]]) -> tuple[float, float, float] | None:
    """Accuracy over all test samples, and over clients.

    Args:
        scores: Of each client how many test samples it predicts rightly, and how many it has.

    Returns:
        The accuracy over the samples of all clients; the mean of the clients' accuracies; and their
        population standard deviation. Clients without samples don't count; None where none has any.
    """
    shares = [correct / count for correct, count in scores if count]
    if not shares:
        return None
    correct, count = (sum(each) for each in zip(*scores, strict=True))
    mean = sum(shares) / len(shares)
    deviation = (sum((share - mean) ** 2 for share in shares) / len(shares)) ** 0.5
    return correct / count, mean, deviation


def accuracy_by_class(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of each class's samples that has its largest score there: FedPKD's Fig. 2.

    Args:
        scores: [N, C], logits or probabilities.
        labels: [N] integers in 0…C−1.

    Returns:
        [C] float64; NaN for a class without samples.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("scores", scores, "N C")
    check_labels("labels", labels, scores.shape[0])
    hits = labels[scores.argmax(1) == labels]
    correct, count = (torch.bincount(y, minlength=scores.shape[1]) for y in (hits, labels))
    return correct.double() / count  # 0/0 is NaN

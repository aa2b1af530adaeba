"""Accuracy and other figures of class scores.

Figures beyond accuracy have two steps: count some samples, then compute the figure of the counts.
Counts of different samples add up, so a figure of a federation needs no client's scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_labels, check_shape


def confusion_counts(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the confusion matrix: samples of each class by predicted class.

    Args:
        scores: [N, C], logits or probabilities; the largest is the prediction.
        labels: [N] integers in 0…C−1.

    Returns:
        [C, C] float64: row y, column ŷ.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(scores, labels)
    classes = scores.shape[1]
    cells = labels.long() * classes + scores.argmax(1)
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes).double()


def recall_by_class(confusion: Tensor) -> Tensor:
    """The share of each class's samples that is predicted rightly, [C]; NaN for one without any.

    Args:
        confusion: [C, C], of `confusion_counts`.
    """
    check_shape("confusion", confusion, "C C", C=confusion.shape[0])
    return confusion.diagonal() / confusion.sum(1)


def balanced_accuracy(confusion: Tensor) -> Tensor:
    """The mean of `recall_by_class` over the classes that have samples, a scalar.

    Args:
        confusion: [C, C], of `confusion_counts`.
    """
    return recall_by_class(confusion).nanmean()


def macro_f1(confusion: Tensor) -> Tensor:
    """The mean F1 = 2TP/(2TP + FP + FN) over the classes that occur or are predicted, a scalar.

    Args:
        confusion: [C, C], of `confusion_counts`.
    """
    check_shape("confusion", confusion, "C C", C=confusion.shape[0])
    return (2 * confusion.diagonal() / (confusion.sum(0) + confusion.sum(1))).nanmean()


def calibration_counts(scores: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """Samples by the confidence with which their class is predicted: Guo et al. 2017, Eq. 3.

    Args:
        scores: [N, C], logits; the confidence p̂ is the largest entry of their softmax.
        labels: [N] integers in 0…C−1.
        bins: M intervals ((m−1)/M, m/M] of the confidence.

    Returns:
        [M, 3] float64: each interval's number of samples, its sum of confidences, and its number of
        right predictions.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(scores, labels)
    confidence, predicted = scores.double().softmax(1).max(1)
    places = (confidence * bins).ceil().long().clamp(1, bins) - 1
    right = (predicted == labels).double()
    each = torch.stack([torch.ones_like(confidence), confidence, right], 1)
    return each.new_zeros(bins, 3).index_add(0, places, each)


def calibration_error(counts: Tensor) -> Tensor:
    """ECE = Σ_m |B_m|/n · |acc(B_m) − conf(B_m)|, a scalar: Guo et al. 2017, Eq. 5.

    Args:
        counts: [M, 3], of `calibration_counts`; without samples the error is NaN.
    """
    check_shape("counts", counts, "M 3")
    return (counts[:, 2] - counts[:, 1]).abs().sum() / counts[:, 0].sum()


def ranked_pairs(scores: Tensor, labels: Tensor) -> Tensor:
    """Count, by class, the pairs of samples that the class's score ranks correctly.

    Args:
        scores: [N, C], logits; samples are ranked by their softmax.
        labels: [N] integers in 0…C−1.

    Returns:
        [C, 2] float64: of each class the pairs that are ranked rightly, a tie as half of one
        (Mann and Whitney's U), and all pairs.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(scores, labels)
    columns = scores.double().softmax(1).T.contiguous()
    order = columns.sort(1).values
    below, through = (torch.searchsorted(order, columns, right=last) for last in (False, True))
    ranks = (below + through + 1) / 2  # from 1; equal ones share theirs
    own = torch.nn.functional.one_hot(labels.long(), scores.shape[1]).T.double()
    count = own.sum(1)
    right = (ranks * own).sum(1) - count * (count + 1) / 2
    return torch.stack([right, count * (len(labels) - count)], 1)


def area_under_curve(pairs: Tensor) -> Tensor:
    """AUC: the share of pairs that are ranked rightly, as the mean over classes with any, a scalar.

    Of one set of samples it is the area under the ROC curve of each class against the others. Of
    summed counts it compares samples of one client with each other alone, as clients' scores need
    not have one scale.

    Args:
        pairs: [C, 2], of `ranked_pairs`.
    """
    check_shape("pairs", pairs, "C 2")
    return (pairs[:, 0] / pairs[:, 1]).nanmean()


def _check(scores: Tensor, labels: Tensor) -> None:
    check_shape("scores", scores, "N C")
    check_floating(scores=scores)
    check_labels("labels", labels, scores.shape[0])


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

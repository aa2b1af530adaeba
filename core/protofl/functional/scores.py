"""Figures of class scores beyond accuracy, from counts that add up over samples and clients.

Each comes in two steps: counts of some samples, and the figure of such counts. Counts of two sets
of samples are summed to those of both, so figures over a whole federation need no client's scores.
"""

from __future__ import annotations

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

"""Figures of the confusion matrix: which classes are predicted for which."""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf


def recall_by_class(confusion: Tensor) -> Tensor:
    """Return TP/(TP + FN) of each class, [C]; NaN for a class without samples."""
    return confusion.diagonal() / confusion.sum(1)


class Confusion:
    """A metric of the confusion matrix."""

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count samples by class y (row) and predicted class, argmax of the scores (column)."""
        classes = scores.shape[1]
        cells = labels.long() * classes + scores.argmax(1)
        return torch.bincount(cells, minlength=classes * classes).view(classes, classes).double()


class MacroF1(Confusion):
    """Mean F1 over the classes that occur or are predicted."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the mean of F1 = 2TP/(2TP + FP + FN)."""
        return (2 * counts.diagonal() / (counts.sum(0) + counts.sum(1))).nanmean()


class BalancedAccuracy(Confusion):
    """Mean recall over the classes that occur."""

    usual_for = "imbalanced classes"

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the mean of the classes' recall."""
        return recall_by_class(counts).nanmean()


class RecallByClass(Confusion):
    """Recall of each class, null for one without test samples."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the share of each class's samples that is predicted correctly, [C]."""
        return recall_by_class(counts)


class ConfusionMatrix(Confusion):
    """Samples of each class (row) that are predicted as each class (column)."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the counts themselves, [C, C]."""
        return counts

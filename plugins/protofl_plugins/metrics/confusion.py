"""Figures of the confusion matrix: which classes are predicted for which."""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F


class Confusion:
    """A metric of the confusion matrix."""

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The confusion matrix, C×C."""
        return F.confusion_counts(scores, labels)


class MacroF1(Confusion):
    """Mean F1 over the classes that occur or are predicted."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Mean of 2TP/(2TP + FP + FN)."""
        return F.macro_f1(counts)


class BalancedAccuracy(Confusion):
    """Mean recall over the classes that occur."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Mean of the classes' recall."""
        return F.balanced_accuracy(counts)


class RecallByClass(Confusion):
    """Recall of each class, null for one without test samples."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """The share of each class's samples that is predicted rightly, [C]."""
        return F.recall_by_class(counts)


class ConfusionMatrix(Confusion):
    """Samples of each class (row) that are predicted as each class (column)."""

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """The counts themselves, [C, C]."""
        return counts

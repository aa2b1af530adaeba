"""Metrics of multi-label tasks: macro F1 over labels, and mean average precision."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

import protofl as pf


class LabelF1:
    """Macro F1 over labels (multi-label): the mean of the labels' F1."""

    tasks: ClassVar = ("multilabel",)
    usual_for = "multilabel"

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count true positives, predicted and actual positives of each label, [L, 3].

        A label is predicted if its score, a logit, is positive.
        """
        predicted, actual = scores > 0, labels > 0.5
        return torch.stack(
            [(predicted & actual).sum(0), predicted.sum(0), actual.sum(0)], 1
        ).double()

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the mean F1 = 2TP/(2TP + FP + FN) of labels that occur or are predicted."""
        return (2 * counts[:, 0] / (counts[:, 1] + counts[:, 2])).nanmean()


class MeanAveragePrecision:
    """Mean average precision over labels (mAP, multi-label).

    AP = Σ_n (R_n − R_{n−1})·P_n over the thresholds n, as scikit-learn's
    ``average_precision_score``. Over all clients, a label's AP is the mean of the clients' weighted
    by their positive samples: scores of different clients' models need not have one scale.
    """

    tasks: ClassVar = ("multilabel",)
    usual_for = "multilabel"

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count AP times positive samples, and positive samples, of each label, [L, 2]."""
        ranked, order = scores.double().sort(0, descending=True)
        actual = (labels > 0.5).double().gather(0, order)
        right = actual.cumsum(0)
        places = torch.arange(1, len(scores) + 1, device=scores.device, dtype=right.dtype)
        # Samples with equal scores have one threshold: the precision at the last of them.
        ends = torch.ones_like(actual, dtype=torch.bool)
        ends[:-1] = ranked[1:] != ranked[:-1]
        at = torch.where(ends, right, torch.inf).flip(0).cummin(0).values.flip(0)
        last = torch.where(ends, places.unsqueeze(1), torch.inf).flip(0).cummin(0).values.flip(0)
        return torch.stack([(actual * at / last).sum(0), right[-1]], 1)

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the mean AP of the labels with a positive sample."""
        return (counts[:, 0] / counts[:, 1]).nanmean()

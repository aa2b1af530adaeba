"""Area under the ROC curve, each class against the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import protofl as pf


class AreaUnderCurve:
    """Area under the ROC curve (AUC), one class against the others, mean over classes.

    Over all clients it is the share of pairs of two samples of one client that are ranked rightly:
    scores of different clients' models need not have one scale.
    """

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count the correctly ranked pairs of each class, and all its pairs, [C, 2].

        Samples are ranked by the softmax of the class's scores; a tie counts as half a pair (Mann
        and Whitney's U).
        """
        columns = scores.double().softmax(1).T.contiguous()
        order = columns.sort(1).values
        below, through = (torch.searchsorted(order, columns, right=last) for last in (False, True))
        ranks = (below + through + 1) / 2  # from 1; equal ones share theirs
        is_label = one_hot(labels.long(), scores.shape[1]).T.double()
        count = is_label.sum(1)
        right = (ranks * is_label).sum(1) - count * (count + 1) / 2
        return torch.stack([right, count * (len(labels) - count)], 1)

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return the share of correctly ranked pairs, as the mean over classes with any."""
        return (counts[:, 0] / counts[:, 1]).nanmean()

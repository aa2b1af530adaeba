"""Area under the ROC curve, each class against the others."""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F


class AreaUnderCurve:
    """Area under the ROC curve (AUC), one class against the others, mean over classes.

    Over all clients it is the share of pairs of two samples of one client that are ranked rightly:
    scores of different clients' models need not have one scale.
    """

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count the correctly ranked pairs of each class, and all its pairs."""
        return F.ranked_pairs(scores, labels)

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """The share of right pairs, as the mean over classes."""
        return F.area_under_curve(counts)

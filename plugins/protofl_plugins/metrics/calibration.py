"""Expected calibration error: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

The confidence of a prediction is its entry of the scores' softmax. Scores that are minus distances,
as prototype methods have them, are taken as they are: nothing promises that their softmax is a
probability, and the error says how far from one it is.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F


class CalibrationError:
    """Expected calibration error (ECE) of the softmax of scores."""

    class Config(pf.Config):
        """Options."""

        bins: int = pf.Field(
            15, ge=1, le=10_000, description="M intervals of confidence; 1: |accuracy − confidence|"
        )

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor, config: Config) -> Tensor:
        """Samples, confidence and right predictions by interval (Eq. 3)."""
        return F.calibration_counts(scores, labels, config.bins)

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """ECE (Eq. 5)."""
        return F.calibration_error(counts)

"""Expected calibration error: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

The confidence of a prediction is its entry of the scores' softmax. Scores that are minus distances,
as prototype methods have them, are taken as they are: nothing promises that their softmax is a
probability, and the error says how far from one it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf


class CalibrationError:
    """Expected calibration error (ECE) of the softmax of scores."""

    class Config(pf.Config):
        """Options."""

        bins: int = pf.Field(
            15, ge=1, le=10_000, description="M intervals of confidence; 1: |accuracy − confidence|"
        )

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor, config: Config) -> Tensor:
        """Count samples, confidence and right predictions by interval (Eq. 3), [M, 3].

        The confidence p̂ is the largest entry of the softmax; interval m is ((m−1)/M, m/M].
        """
        confidence, predicted = scores.double().softmax(1).max(1)
        places = (confidence * config.bins).ceil().long().clamp(1, config.bins) - 1
        right = (predicted == labels).double()
        each = torch.stack([torch.ones_like(confidence), confidence, right], 1)
        return each.new_zeros(config.bins, 3).index_add(0, places, each)

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return ECE = Σ_m |B_m|/n · |acc(B_m) − conf(B_m)| (Eq. 5); NaN without samples."""
        return (counts[:, 2] - counts[:, 1]).abs().sum() / counts[:, 0].sum()

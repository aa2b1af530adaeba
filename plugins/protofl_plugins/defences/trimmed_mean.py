"""Trimmed mean of the clients' prototypes.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018),
Definition 2, class by class: of every number the f_c smallest and the f_c largest values are left
out, and the mean of the others is taken. f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋) of the n_c clients
that have the class: with one or two nothing can be cut off.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.robust_defence import DefenceConfig, RobustMean


class TrimmedMean(RobustMean):
    """Defence: a class's mean without the largest and smallest values (Yin et al., 2018)."""

    class Config(DefenceConfig):
        """Options."""

        share: float = pf.Field(
            0.2,
            ge=0,
            le=0.5,
            description="share of a class's clients expected to be malicious; 0 is the mean, 0.5 "
            "nearly the median",
        )

    def rule(
        self, server: pf.Server[Config], rows: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Definition 2."""
        return F.trimmed_mean(rows, present, server.config.share)

"""Coordinate-wise median of the clients' prototypes.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018),
Definition 1, class by class over the clients that have the class:

    P̄^c_k = med{ P_i^c,k : i in N_c }

Of an even number of values it is the mean of the two in the middle.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.robust_defence import DefenceConfig, RobustMean


class CoordinateMedian(RobustMean):
    """Defence: the median of every number of a class's prototypes (Yin et al., 2018)."""

    class Config(DefenceConfig):
        """Options."""

    def rule(self, server: pf.Server, rows: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Definition 1."""
        return F.coordinate_median(rows, present)

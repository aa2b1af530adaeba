"""Geometric median of the clients' prototypes.

Pillutla et al., "Robust Aggregation for Federated Learning" (IEEE TSP 2022), class by class and
unweighted:

    P̄^c = argmin_v Σ_{i in N_c} ‖v − P_i^c‖

by Weiszfeld's iteration, until no class's point moves by more than ``tolerance`` of the median
distance to it (`protofl.functional.geometric_median`). The paper smooths the distances near 0; here
an iterate on a prototype takes Vardi and Zhang's step, which needs no constant.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.robust_defence import DefenceConfig, RobustMean


class GeometricMedian(RobustMean):
    """Defence: the point nearest to all of a class's prototypes (Pillutla et al., 2022)."""

    class Config(DefenceConfig):
        """Options."""

        tolerance: float = pf.Field(
            1e-7, gt=0, lt=1, description="the last step, in median distances; large stops early"
        )
        iterations: int = pf.Field(1000, ge=1, description="steps at most")

    def rule(
        self, server: pf.Server[Config], rows: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The minimum."""
        config = server.config
        return F.geometric_median(rows, present, config.tolerance, config.iterations)

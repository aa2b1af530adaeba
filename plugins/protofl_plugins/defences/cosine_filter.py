"""Cosine filter on the clients' prototypes.

    kept: P_i^c with cos(P_i^c, med^c) ≥ least,  med^c the coordinate-wise median of class c

Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping" (NDSS 2021),
score updates by their cosine to one of the server's own data, and negative ones with 0: hence
``least=0``. A server without data has the median in its place. The one with the largest cosine is
always kept. Lengths are not looked at: what is only scaled passes. Honest prototypes of unlike
models need not be alike in the first rounds, and are then left out, the more the larger ``least``
is.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.robust_defence import DefenceConfig, Filter


class CosineFilter(Filter):
    """Defence: leaves out prototypes that point away from the median (after Cao et al., 2021)."""

    class Config(DefenceConfig):
        """Options."""

        least: float = pf.Field(
            0.0, ge=-1, le=1, description="the smallest cosine that is kept; −1 keeps all, 1 one"
        )

    def rule(self, server: pf.Server[Config], rows: Tensor, present: Tensor) -> Tensor:
        """Rows near the median's direction."""
        return F.cosine_filter(rows, present, server.config.least)

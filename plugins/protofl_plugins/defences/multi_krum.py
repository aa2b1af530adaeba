"""Multi-Krum on the clients' prototypes.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NeurIPS
2017), class by class over the n_c clients that have the class: the score of a prototype is the sum
of its squared distances to its n_c − f_c − 2 nearest others, and the n_c − f_c with the smallest
scores are kept, and averaged. f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋). The paper's guarantee asks for
n_c > 2·f_c + 2, which a class that few clients have does not meet; there at least one neighbour
counts.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.robust_defence import DefenceConfig, Filter


class MultiKrum(Filter):
    """Defence: leaves out prototypes that are far from most others (Blanchard et al., 2017)."""

    class Config(DefenceConfig):
        """Options."""

        share: float = pf.Field(
            0.2,
            ge=0,
            le=0.5,
            description="share of a class's clients expected to be malicious, which are left out; "
            "0 keeps all",
        )

    def rule(self, server: pf.Server[Config], rows: Tensor, present: Tensor) -> Tensor:
        """The smallest scores."""
        return F.multi_krum(rows, present, server.config.share)

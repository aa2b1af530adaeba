"""FedProto: clients are guided by the mean of all clients' prototypes.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022; the
equations are numbered as in FedTGP (Zhang et al., AAAI 2024), which restates them.

    P_i^c   client i's prototype of class c: mean feature of its samples          (Eq. 2)
    P̄^c    global prototype: Σ_{i in N_c} |D_i,c|/N_c · P_i^c                     (Eq. 3)
    L_i     E ℓ(h_i(f_i(x)), y) + λ·E_{c ~ C_i} φ(P_i^c, P̄^c)                     (Eq. 4)

Inference: the class of the nearest global prototype; the head, before there are any.

Eq. 3 as printed divides by |N_c| once more, which shrinks prototypes, as the weights sum to 1
already: ``aggregate=eq3``. The default ``weighted`` leaves that division out. With ρ < 1 a class
may be absent from a round; it keeps its last prototype (``absent``).
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.prototype_methods import (
    Guided,
    GuidedConfig,
    KeptConfig,
    SendsMeans,
    guide,
)


class FedProto(SendsMeans, Guided):
    """Clients are guided by the mean of all clients' prototypes (Tan et al., 2022)."""

    class Config(GuidedConfig, KeptConfig):
        """Options, with the paper's symbols."""

        deviations = {**GuidedConfig.deviations, **KeptConfig.deviations}

    terms = {
        "ce": "cross-entropy, the first part of Eq. 4",
        "align": "λ·E_c φ(P_i^c, P̄^c), the second part of Eq. 4",
    }
    downloads = {"prototypes": "P̄^c of the classes that anybody has sent"}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Eq. 4."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given:
            terms["align"] = guide(client, batch, output, **given)  # λ·E_c φ(P_i^c, P̄^c)
        return terms

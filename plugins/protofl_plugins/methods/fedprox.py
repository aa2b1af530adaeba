"""FedProx: FedAvg with a proximal term.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y) + (μ/2)·‖w_i − w‖²
    server    w ← Σ_i (n_i / n) · w_i

w is the model that the client received, kept frozen during its training. Inference is by the
shared model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.weight_sharing import ModelSharingConfig, SharedModel


class FedProx(SharedModel):
    """FedAvg with a proximal term that keeps clients near the shared model (Li et al., 2020)."""

    class Config(ModelSharingConfig):
        """Options, with the paper's symbols."""

        mu: float = pf.Field(
            0.01,
            ge=0,
            description="μ of the proximal term; 0 regresses to FedAvg, large values freeze "
            "clients at w. The paper tunes 0.001, 0.01, 0.1 and 1",
        )

    terms = {
        "ce": "cross-entropy",
        "prox": "(μ/2)·‖w_i − w‖², Eq. 2",
    }

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """Keep w as it was received."""
        return {"w": _flat(client).detach()}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Eq. 2."""
        squared = (_flat(client) - given["w"]).square().sum()
        return {
            "ce": cross_entropy(output.logits, batch.y),
            "prox": client.config.mu / 2 * squared,
        }


def _flat(client: pf.Learner) -> Tensor:
    """w_i as one vector: a few operations whatever the number of layers, and a rule for vmap."""
    return torch.cat([p.flatten() for p in client.parameters()])

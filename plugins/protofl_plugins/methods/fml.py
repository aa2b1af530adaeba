"""FML: clients learn mutually with a small model that they share.

Shen et al., "Federated Mutual Learning", 2020 (arXiv:2006.16765); α = β = 0.5 as in FedTGP (Zhang
et al., AAAI 2024, appendix A).

    L_local       α·ℓ(p, y) + (1−α)·KL(p_aux ‖ p)
    L_auxiliary   β·ℓ(p_aux, y) + (1−β)·KL(p ‖ p_aux)
    server        θ_aux ← 1/M · Σ_i θ_aux,i

    p, p_aux   softmax of the scores of the client's own and of the auxiliary ("meme") model

The target of each KL is detached, so each model learns from its own loss alone. The KL is summed
over classes and averaged over the batch. The auxiliary model is the one that the group declares,
sent from round 0: all clients begin with the same. Inference is by the client's own model.
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.auxiliary import SharedAuxiliary
from protofl_plugins.mutual_learning import Mutual, MutualConfig, divergence


class FML(Mutual, SharedAuxiliary):
    """Clients learn mutually with a small shared model (Shen et al., 2020)."""

    class Config(MutualConfig):
        """Options, with the paper's symbols."""

        alpha: float = pf.Field(
            0.5,
            ge=0,
            le=1,
            description="α: 1 regresses to local training, 0 learns from the auxiliary model alone",
        )
        beta: float = pf.Field(
            0.5,
            ge=0,
            le=1,
            description="β: 1 trains the auxiliary model as FedAvg does, 0 has it only imitate the "
            "client's model",
        )

    native_widths = True
    terms = {
        "ce": "α·ℓ(p, y), cross-entropy of the client's model",
        "kl": "(1−α)·KL(p_aux ‖ p)",
        "aux_ce": "β·ℓ(p_aux, y), cross-entropy of the auxiliary model",
        "aux_kl": "(1−β)·KL(p ‖ p_aux)",
    }
    uploads = {
        "auxiliary/*": "the auxiliary model after local training; gradients can be inverted from "
        "it. The client's own model stays private",
    }

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """L_local and L_auxiliary."""
        config = client.config
        alpha, beta = config.alpha, config.beta
        own, auxiliary = output.logits, client.module("auxiliary")(batch.x)
        return {
            "ce": alpha * cross_entropy(own, batch.y),
            "kl": (1 - alpha) * divergence(config, own, auxiliary),
            "aux_ce": beta * cross_entropy(auxiliary, batch.y),
            "aux_kl": (1 - beta) * divergence(config, auxiliary, own),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """θ_aux,i."""
        return pf.models.pack_weights(client.module("auxiliary"), "auxiliary")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The plain mean over the round's clients."""
        return pf.models.average_weights(list(uploads.values()), "auxiliary")

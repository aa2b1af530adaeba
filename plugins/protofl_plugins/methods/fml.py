"""FML: clients learn mutually with a small model that they share.

Shen et al., "Federated Mutual Learning", 2020 (arXiv:2006.16765); α = β = 0.5 as in FedTGP (Zhang
et al., AAAI 2024, appendix A).

    L_local       α·ℓ(p, y) + (1−α)·KL(p_aux ‖ p)
    L_auxiliary   β·ℓ(p_aux, y) + (1−β)·KL(p ‖ p_aux)
    server        θ_aux ← 1/M · Σ_i θ_aux,i

    p, p_aux   softmax of the scores of the client's own and of the auxiliary ("meme") model

The target of each KL is detached, so each model learns from its own loss alone. The KL is summed
over classes and averaged over the batch. The auxiliary model is the one that the group declares,
sent from the first round: all clients begin with the same. Inference is by the client's own model.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import auxiliary


class FML:
    """Clients learn mutually with a small shared model (Shen et al., 2020)."""

    class Config(auxiliary.MutualConfig):
        """Options, with the paper's symbols.

        Shared: auxiliary, auxiliary_dim, kl_mean, detach, clip.
        """

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

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    terms = {
        "ce": "α·ℓ(p, y), cross-entropy of the client's model",
        "kl": "(1−α)·KL(p_aux ‖ p)",
        "aux_ce": "β·ℓ(p_aux, y), cross-entropy of the auxiliary model",
        "aux_kl": "(1−β)·KL(p ‖ p_aux)",
    }
    uploads = {
        "auxiliary/*": pf.Key(
            "as the parameter",
            "the auxiliary model after local training; gradients can be inverted from it. The "
            "client's own model stays private",
        ),
    }
    downloads = {
        "auxiliary/*": pf.Key("as the parameter", "the average of the clients' auxiliary models")
    }

    run_defaults = staticmethod(auxiliary.mutual_defaults)
    requires = staticmethod(auxiliary.unknown_architecture)
    resolve = staticmethod(auxiliary.chosen_architecture)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build θ_aux."""
        return pf.models.pack_weights(auxiliary.built(server), "auxiliary")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add θ_aux,i, which trains with the client's own model."""
        client.add_module("auxiliary", auxiliary.built(client))

    download_payload = auxiliary.AUXILIARY.download_payload  # θ_aux
    receive = auxiliary.AUXILIARY.receive  # θ_aux

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """L_local and L_auxiliary."""
        config, divergence = client.config, auxiliary.divergence
        alpha, beta = config.alpha, config.beta
        p, p_aux = output.logits, client.module("auxiliary")(batch.x)
        return {
            "ce": alpha * client.task.loss(p, batch.y),
            "kl": (1 - alpha) * divergence(client, p, p_aux),
            "aux_ce": beta * client.task.loss(p_aux, batch.y),
            "aux_kl": (1 - beta) * divergence(client, p_aux, p),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send θ_aux,i."""
        return pf.models.pack_weights(client.module("auxiliary"), "auxiliary")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: θ_aux ← 1/M · Σ_i θ_aux,i."""
        return pf.models.average_weights(list(uploads.values()), "auxiliary")

    global_models = staticmethod(auxiliary.shared_auxiliary)

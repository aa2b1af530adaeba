"""Clients that share one model, averaged by the server."""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import weights


class FedAvg:
    """Clients share one model, averaged by the server (McMahan et al., 2017).

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017; FedPKD Eq. 1.

        local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w
        server    w ← Σ_i (n_i / n) · w_i

    The server builds w, so that it is sent from the first round. Clients train with cross-entropy
    and infer by the shared model, as without any method.
    """

    class Config(weights.ModelSharingConfig, weights.ScopeConfig):
        """Options; shared: scope, aggregate, buffers."""

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    uploads = weights.UPLOADS
    downloads = weights.DOWNLOADS

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # w
    download_payload = weights.MODEL.download_payload  # w
    receive = weights.MODEL.receive  # w_i ← w
    upload_payload = weights.MODEL.upload_payload  # w_i and n_i
    server_aggregate = weights.MODEL.server_aggregate  # w ← Σ_i (n_i / n) · w_i
    global_models = weights.MODEL.global_models


class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the shared model (Li et al., 2020).

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2.

        local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y) + (μ/2)·‖w_i − w‖²
        server    w ← Σ_i (n_i / n) · w_i

    w is the model that the client received, kept frozen during its training. Inference is by the
    shared model.
    """

    class Config(FedAvg.Config):
        """Options, with the paper's symbols; shared: scope, aggregate, buffers."""

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
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Keep w as it was received."""
        return {"w": weights.flat(client.parameters()).detach()}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 2."""
        squared = (weights.flat(client.parameters()) - constants["w"]).square().sum()
        return {
            "ce": client.task.loss(output.logits, batch.y),
            "prox": client.config.mu / 2 * squared,
        }

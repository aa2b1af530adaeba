"""Clients that share one model, averaged by the server."""

from __future__ import annotations

from torch import nn

import protofl as pf
from protofl_plugins.shared import weights


class FedAvg:
    """Clients share one model, averaged by the server (McMahan et al., 2017).

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017; FedPKD Eq. 1.

        local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w
        server    w ← Σ_i (n_i / n) · w_i

    The server builds w, so that it is sent from round 0. Clients train with cross-entropy and infer
    by the shared model, as without any method.
    """

    class Config(weights.ModelSharingConfig):
        """Options; shared: aggregate, buffers."""

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    uploads = weights.UPLOADS
    downloads = weights.DOWNLOADS

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require a single architecture."""
        return weights.unequal_models(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build w."""
        return weights.initial_model(server)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send w."""
        return server.global_state.select("model/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_i ← w."""
        weights.install(client, "model")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send w_i and n_i."""
        return weights.trained_weights(client, "model")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: w ← Σ_i (n_i / n) · w_i."""
        return weights.mean_weights(server, uploads, "model")

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate w on the global test samples."""
        return weights.shared_model(server)


class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the shared model (Li et al., 2020).

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2.

        local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y) + (μ/2)·‖w_i − w‖²
        server    w ← Σ_i (n_i / n) · w_i

    w is the model that the client received, kept frozen during its training. Inference is by the
    shared model.
    """

    class Config(FedAvg.Config):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

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

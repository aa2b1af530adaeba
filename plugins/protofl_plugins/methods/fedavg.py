"""FedAvg: clients share one model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017; FedPKD Eq. 1.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w
    server    w ← Σ_i (n_i / n) · w_i

The server builds w, so that it is sent from round 0. Clients train with cross-entropy and infer by
the shared model, as without any method.
"""

from __future__ import annotations

from torch import nn

import protofl as pf
from protofl_plugins.shared import weights


class FedAvg:
    """Clients share one model, averaged by the server (McMahan et al., 2017)."""

    class Config(weights.ModelSharingConfig):
        """Options."""

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/*": "the average of the clients' models"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require a single architecture."""
        return weights.unequal_models(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build w."""
        buffers = weights.averages_buffers(server.config)
        return pf.models.pack_weights(weights.built_model(server), "model", buffers=buffers)

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
        return weights.shared_model(server, weights.built_model(server))

"""LG-FedAvg: clients share the head and keep their feature extractors.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020; as in FedTGP, section "Baseline methods": the last layer h is shared.

    local     min over f_i, h_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y), h_i starting from h
    server    h ← Σ_i (n_i / n) · h_i

The server builds h and sends it from round 0: the algorithm begins with one global part, and so
does published code, which takes the first client's head. Clients train
with cross-entropy and infer by the head.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import weights


class LGFedAvg:
    """Clients share the head and keep their own feature extractors (Liang et al., 2020)."""

    class Config(weights.SharingConfig, pf.VariantConfig):
        """Options; shared: aggregate."""

        official = {"drop_last": True}

    tasks = pf.datasets.Task.OF_HEADS
    asynchronous = "versions"
    uploads = {
        "head/*": "the classifier after local training; its bias hints at the class shares",
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        "head/*": "h, one head for all; the average of the clients' heads from the second round on"
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require heads of one shape."""
        return weights.unequal_heads(run, "averages heads")

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build h."""
        return pf.models.pack_weights(weights.built_model(server).head, "head")

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send h."""
        return server.global_state.select("head/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install h: h_i ← h."""
        weights.install(client, "head")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send h_i and n_i."""
        return weights.trained_weights(client, "head")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: h ← Σ_i (n_i / n) · h_i."""
        return weights.mean_weights(server, uploads, "head")

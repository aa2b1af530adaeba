"""FedPer: clients share the base layers and keep their last layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
algorithms 1 and 2.

    local     min over W_B, W_P,j of  E_{(x, y) ~ D_j} ℓ(W_P,j(W_B(x)), y), W_B,j starting from W_B
    server    W_B ← Σ_j γ_j · W_B,j,  γ_j = n_j / n

The base layers W_B are the feature extractor; the personalization layers W_P,j are the head, as
with K_P = 1 in the paper. The server builds W_B and sends it from round 0. A client trains both
parts at once and continues from its own W_P,j in the next round. Clients train with cross-entropy
and infer by their own head.
"""

from __future__ import annotations

import protofl as pf
from protofl_plugins.shared import weights


class FedPer:
    """Clients share the base layers and keep their last layers (Arivazhagan et al., 2019)."""

    class Config(weights.SharingConfig):
        """Options; shared: aggregate."""

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    uploads = {
        "extractor/*": pf.Key(
            "as the parameter",
            "W_B,j, the extractor after local training; gradients can be inverted from it",
        ),
        "samples": "n_j, the number of training samples",
    }
    downloads = {
        "extractor/*": pf.Key("as the parameter", "W_B, the average of the clients' extractors")
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one architecture, so that W_B has one shape."""
        return weights.unequal_extractors(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build W_B."""
        return pf.models.pack_weights(weights.built_model(server).extractor, "extractor")

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send W_B."""
        return server.global_state.select("extractor/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install W_B: W_B,j ← W_B."""
        weights.install(client, "extractor")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send W_B,j and n_j."""
        return weights.trained_weights(client, "extractor")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: W_B ← Σ_j γ_j · W_B,j."""
        return weights.mean_weights(server, uploads, "extractor")

"""FedBABU: clients train and share the body, and the head keeps its first weights.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv 2106.06042), algorithm 1.

    local     θ_k ← θ_k − η·∇_θ ℓ(θ_k, h; x, y), starting from θ, h fixed
    server    θ ← Σ_k (n_k / n) · θ_k
    at last   h_k ← h_k − η·∇_h ℓ(θ, h_k; x, y), starting from h, θ fixed; ``--fine-tune`` epochs

The body θ is the feature extractor, h the head. All clients have the server's first h, which they
build themselves, so that it does not travel. The server builds θ and sends it from the first round.
Clients train with cross-entropy and infer by the shared body and the first head; after fine-tuning
by their own head.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

import protofl as pf
from protofl_plugins.shared import weights

TUNED = {"head": ("head",), "body": ("extractor",), "full": ("extractor", "head")}
"""The parts that fine-tuning trains, by the option ``tune``."""


class FedBABU:
    """Clients share the body, and the head keeps its first weights (Oh et al., 2022)."""

    class Config(weights.SharingConfig):
        """Options; shared: aggregate."""

        tune: Literal["head", "body", "full"] = pf.Field(
            "head", description="the part of the model that --fine-tune trains after the last round"
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = "versions"
    uploads = {
        "extractor/*": "θ_k, the body after local training; gradients can be inverted from it",
        "samples": "n_k, the number of training samples",
    }
    downloads = {"extractor/*": "θ, the average of the clients' bodies"}

    requires = weights.EXTRACTOR.requires

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Train the body; fine-tune the head."""
        return [pf.Phase("body", trains=("extractor",), fine_tunes=TUNED[config.tune])]

    setup_server = weights.EXTRACTOR.setup_server  # θ

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Install h."""
        first = pf.models.pack_weights(client.build(client.architecture).head, "head")
        pf.models.load_weights(client.module("head"), first, "head")

    download_payload = weights.EXTRACTOR.download_payload  # θ
    receive = weights.EXTRACTOR.receive  # θ_k ← θ
    upload_payload = weights.EXTRACTOR.upload_payload  # θ_k and n_k
    server_aggregate = weights.EXTRACTOR.server_aggregate  # θ ← Σ_k (n_k / n) · θ_k

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate {θ, h} on the global test samples."""
        model = weights.built_model(server)
        pf.models.load_weights(model.extractor, server.global_state, "extractor")
        return {"model": model}

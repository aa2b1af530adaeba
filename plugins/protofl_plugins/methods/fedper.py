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

    requires = weights.EXTRACTOR.requires
    setup_server = weights.EXTRACTOR.setup_server  # W_B
    download_payload = weights.EXTRACTOR.download_payload  # W_B
    receive = weights.EXTRACTOR.receive  # W_B,j ← W_B
    upload_payload = weights.EXTRACTOR.upload_payload  # W_B,j and n_j
    server_aggregate = weights.EXTRACTOR.server_aggregate  # W_B ← Σ_j γ_j · W_B,j

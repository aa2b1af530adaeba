"""FedPer: clients share the base layers and keep their last layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
algorithms 1 and 2.

    local     min over W_B, W_P,j of  E_{(x, y) ~ D_j} ℓ(W_P,j(W_B(x)), y), W_B,j starting from W_B
    server    W_B ← Σ_j γ_j · W_B,j,  γ_j = n_j / n

The base layers W_B are the feature extractor; the personalization layers W_P,j are the head, as
with K_P = 1 in the paper. The server builds W_B and sends it from the first round. A client trains
both parts at once and continues from its own W_P,j in the next round. Clients train with
cross-entropy and infer by their own head.
"""

from __future__ import annotations

from typing import Literal

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


class FedRep(FedPer):
    """Clients share a representation and train their own heads first (Collins et al., 2021).

    Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML
    2021 (arXiv 2102.07078), algorithm 1. In each round, with epochs in place of single updates:

        h_i     ← GRD(f_i(h_i, φ), h_i, α), τ_h times: epochs on the head, φ fixed
        φ_i     ← GRD(f_i(h_i, φ_i), φ_i, α) from φ_i = φ: epochs on the representation, h_i fixed
        server  φ ← 1/(rn) · Σ_i φ_i over the rn clients of the round

    φ is the feature extractor, h_i the head, as in FedPer otherwise. The statistics of BatchNorm in
    the extractor belong to φ; both phases update them.
    """

    class Config(FedPer.Config, pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"same_init": True}
        deviations = {
            "aggregate": pf.Deviation(
                "algorithm 1", "uniform", "weighted", "the code weights φ_i by n_i"
            ),
        }
        head_epochs: int = pf.Field(
            10,
            ge=1,
            description="τ_h, epochs of the head before those of φ, whose number is "
            "--local-epochs; many fit the head to the φ received",
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            None, description="weights n_i/n of the average, or 1/(rn)"
        )

    check_options = {"head_epochs": 2}

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Train the head for τ_h epochs, then the representation."""
        return [
            pf.Phase("head", epochs=config.head_epochs, trains=("head",)),
            pf.Phase("representation", trains=("extractor",)),
        ]

"""FedRep: clients share a representation and keep their heads, trained one after the other.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(arXiv 2102.07078), algorithm 1. In each round, with epochs in place of single updates:

    h_i     ← GRD(f_i(h_i, φ), h_i, α), τ_h times: epochs on the head, φ fixed
    φ_i     ← GRD(f_i(h_i, φ_i), φ_i, α) from φ_i = φ: epochs on the representation, h_i fixed
    server  φ ← 1/(rn) · Σ_i φ_i over the rn clients of the round

φ is the feature extractor, h_i the head. The server builds φ and sends it from round 0. A client
continues from its own h_i in the next round. Clients train with cross-entropy and infer by their
own head on φ. The statistics of BatchNorm in the extractor belong to φ; both phases update them.
"""

from __future__ import annotations

from typing import Literal

import protofl as pf
from protofl_plugins.shared import weights


class FedRep:
    """Clients share a representation and train their own heads first (Collins et al., 2021)."""

    class Config(weights.SharingConfig, pf.VariantConfig):
        """Options, with the paper's symbols."""

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

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    check_options = {"head_epochs": 2}
    asynchronous = "versions"
    uploads = {
        "extractor/*": pf.Key(
            "as the parameter",
            "φ_i, the extractor after local training; gradients can be inverted from it",
        ),
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        "extractor/*": pf.Key("as the parameter", "φ, the average of the clients' extractors")
    }

    requires = weights.EXTRACTOR.requires

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Train the head for τ_h epochs, then the representation."""
        return [
            pf.Phase("head", epochs=config.head_epochs, trains=("head",)),
            pf.Phase("representation", trains=("extractor",)),
        ]

    setup_server = weights.EXTRACTOR.setup_server  # φ
    download_payload = weights.EXTRACTOR.download_payload  # φ
    receive = weights.EXTRACTOR.receive  # φ_i ← φ
    upload_payload = weights.EXTRACTOR.upload_payload  # φ_i and n_i
    server_aggregate = weights.EXTRACTOR.server_aggregate  # φ ← 1/(rn) · Σ_i φ_i

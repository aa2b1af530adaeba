"""FedRep: clients share a representation and keep heads of their own.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
Algorithm 1, with epochs in place of single steps. In a round

    h_i    τ epochs on the client's head, the representation φ fixed
    φ_i    epochs on the representation, the head fixed
    φ      the plain mean of the φ_i of the round's clients

Clients begin with one representation, sent in round 0. BatchNorm's statistics belong to φ.
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy

import protofl as pf


class FedRep:
    """Clients share a representation and keep heads of their own (Collins et al., 2021)."""

    requires_hookspec = "2.2"

    class Config(pf.Config):
        """Options."""

        tau: int = pf.Field(
            5, ge=1, description="τ, epochs of the head; many fit it to the φ received"
        )
        body_epochs: int = pf.Field(
            1, ge=1, description="epochs of φ; many move it far from the others'"
        )

    check_options = {"tau": 2}
    terms = {"ce": "cross-entropy"}
    uploads = {"body/*": "the weights of φ_i; gradients can be inverted from them"}
    downloads = {"body/*": "the weights of φ"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """One architecture for all."""
        return [] if run.homogeneous else ["φ is averaged: one architecture, --models cnn4"]

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """The head, then φ."""
        head = pf.Phase("head", epochs=config.tau, trains=("head",))
        return [head, pf.Phase("body", epochs=config.body_epochs, trains=("extractor",))]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """φ as all clients begin with it."""
        model = server.build(server.clients[0].architecture)
        return pf.models.pack_weights(model.extractor, "body")

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """φ."""
        return server.knowledge.select("body/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install φ."""
        pf.models.load_weights(client.module("extractor"), client.received, "body")

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output) -> pf.Terms:
        """The same in both phases."""
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """φ_i."""
        return pf.models.pack_weights(client.module("extractor"), "body")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The plain mean."""
        return pf.models.average_weights([*uploads.values()], "body")

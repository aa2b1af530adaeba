"""FedRep: clients share a representation and keep their own heads.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
Algorithm 1, with epochs in place of single steps. In each round:

    h_i    τ epochs on the client's head, with the representation φ fixed
    φ_i    epochs on the representation, with the head fixed
    φ      the plain mean of the φ_i of the round's clients

Clients start from the same representation, sent in round 0. BatchNorm's statistics belong to φ.
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy

import protofl as pf


class FedRep:
    """Clients share a representation and keep their own heads (Collins et al., 2021)."""

    requires_hookspec = "1.0"

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
    uploads = {
        "body/*": pf.Key(
            "as the parameter", "the weights of φ_i; gradients can be inverted from them"
        )
    }
    downloads = {"body/*": pf.Key("as the parameter", "the weights of φ")}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one architecture for all clients."""
        return [] if run.homogeneous else ["φ is averaged: one architecture, --models cnn4"]

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Train the head, then φ."""
        head = pf.Phase("head", epochs=config.tau, trains=("head",))
        return [head, pf.Phase("body", epochs=config.body_epochs, trains=("extractor",))]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build the φ that all clients start from."""
        model = server.build(server.clients[0].architecture)
        return pf.models.pack_weights(model.extractor, "body")

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """Send φ."""
        return server.global_state.select("body/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install φ."""
        pf.models.load_weights(client.module("extractor"), client.received, "body")

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output) -> pf.Terms:
        """Return cross-entropy in both phases."""
        return {"ce": cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send φ_i."""
        return pf.models.pack_weights(client.module("extractor"), "body")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Return the plain mean of the φ_i."""
        return pf.models.average_weights([*uploads.values()], "body")

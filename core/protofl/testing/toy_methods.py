"""Two methods to try plugins of other kinds with: one sends prototypes, one all weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

import protofl as pf


class Prototypes:
    """Clients send prototypes, the server sends their mean, and clients are drawn to it."""

    terms = {"ce": "cross-entropy", "align": "distance to the mean prototype of the class"}
    uploads = {"prototypes": "mean features", "classes": "whose they are"}
    downloads = {"prototypes": "their mean over clients"}

    @pf.hookimpl
    def download_payload(self, server: pf.Server) -> pf.Payload:
        """Return the server's knowledge."""
        return server.knowledge.select("prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.Given:
        """A table of all classes."""
        if "prototypes" not in client.received:
            return {}
        table, known = client.received.table("prototypes", client.num_classes)
        return {"table": table, "known": known}

    @pf.hookimpl
    def local_loss(self, batch: pf.Batch, output: pf.Output, given: pf.Given) -> dict[str, Tensor]:
        """Cross-entropy and the distance."""
        terms = {"ce": nn.functional.cross_entropy(output.logits, batch.y)}
        if given:
            table, known = given["table"], given["known"]
            terms["align"] = pf.functional.prototype_alignment(
                output.features, batch.y, table.to(output.features), known
            )
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """Mean features."""
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """Return the mean of the uploads."""
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        mean, known = pf.functional.aggregate_prototypes(P, present, "uniform")
        return pf.class_rows(known, prototypes=mean)


class Weights:
    """All weights are averaged; all clients have one architecture."""

    terms = {"ce": "cross-entropy"}
    uploads = {"model/*": "the weights", "model/buffer/*": "statistics of BatchNorm"}
    downloads = uploads

    @pf.hookimpl
    def download_payload(self, server: pf.Server) -> pf.Payload:
        """The mean."""
        return pf.Payload(server.knowledge)

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Take the mean over."""
        if client.received:
            pf.models.load_weights(client.module("model"), client.received, "model")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """All weights."""
        return pf.models.pack_weights(client.module("model"), "model")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """Return the plain mean of the uploads."""
        return pf.models.average_weights([*uploads.values()], "model")

"""ProtoNCE: features are contrasted with the mean prototypes of all clients.

After the global prototype term of FedPCL: Tan et al., "Federated Learning from Pre-Trained Models:
A Contrastive Learning Approach", NeurIPS 2022. Our reading of the idea, not a reproduction: the
paper's pre-trained backbones, its projection and its sets of single clients' prototypes are left
out, and cross-entropy trains the classifier beside it.

    P̄^c    the mean of the P_i^c of the clients that have class c
    L_NCE  −log( e^(cos(z, P̄^y)/τ) / Σ_c e^(cos(z, P̄^c)/τ) )
    L_i    cross-entropy + λ·L_NCE;  inference by the largest cosine
"""

from __future__ import annotations

from collections.abc import Mapping

import protofl as pf
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

Losses = dict[str, Tensor]


class ProtoNCE:
    """Features are contrasted with all clients' mean prototypes (after FedPCL, 2022)."""

    class Config(pf.Config):
        """Options."""

        lambda_: float = pf.Field(1.0, alias="lambda", ge=0, description="λ of L_NCE; 0 is local")
        tau: float = pf.Field(0.5, gt=0, description="τ, the temperature; small is hard")

    terms = {"ce": "cross-entropy", "nce": "λ·L_NCE"}
    uploads = {"prototypes": "mean features", "classes": "of these classes"}
    downloads = {"prototypes": "P̄ of all classes that anybody has sent"}

    @pf.hookimpl
    def download_payload(self, server: pf.Server) -> pf.Payload:
        """P̄."""
        return server.knowledge.select("prototypes")

    @pf.hookimpl
    def local_loss(self, client: pf.Client, batch: pf.Batch, output: pf.Output) -> Losses:
        """L_i; a class that nobody has sent adds nothing to L_NCE."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if "prototypes" in client.received:
            scores, known = _scores(client, output.features)
            rows = cross_entropy(scores, batch.y, reduction="none")
            terms["nce"] = client.config.lambda_ * rows.where(known[batch.y], 0).mean()
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """P_i^c, without counts."""
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """P̄."""
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes, server.feature_dim)
        mean, known = pf.functional.aggregate_prototypes(P, present, "uniform")
        return pf.class_rows(known, prototypes=mean)

    @pf.hookimpl
    def inference(self, client: pf.Client, x: Tensor) -> Tensor:
        """The largest cosine; before the first prototypes arrive the head decides."""
        z = client.features(x)
        return _scores(client, z)[0] if "prototypes" in client.received else client.head(z)


def _scores(client: pf.Client, z: Tensor) -> tuple[Tensor, Tensor]:
    """cos(z, P̄^c)/τ, B×C, −∞ for classes without a prototype; and those that have one, [C]."""
    table, known = client.received.table("prototypes", client.num_classes, client.feature_dim)
    cosines = normalize(z.float()) @ normalize(table).T
    return (cosines / client.config.tau).masked_fill(~known, -torch.inf), known

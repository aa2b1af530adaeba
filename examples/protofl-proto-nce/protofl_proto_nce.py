"""ProtoNCE: features are contrasted with the mean prototypes of all clients.

Based on the global prototype term of FedPCL: Tan et al., "Federated Learning from Pre-Trained
Models: A Contrastive Learning Approach", NeurIPS 2022. This is our reading of the idea, not a
reproduction. It leaves out the paper's pre-trained backbones, its projection and its sets of single
clients' prototypes. Cross-entropy also trains the classifier.

    P̄^c    the mean of the P_i^c of the clients that have class c
    L_NCE  −log( e^(cos(z, P̄^y)/τ) / Σ_c e^(cos(z, P̄^c)/τ) )
    L_i    cross-entropy + λ·L_NCE;  inference by the largest cosine
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf


class ProtoNCE:
    """Features are contrasted with all clients' mean prototypes (after FedPCL, 2022)."""

    class Config(pf.Config):
        """Options."""

        lambda_: float = pf.Field(1.0, alias="lambda", ge=0, description="λ of L_NCE; 0 is local")
        tau: float = pf.Field(0.5, gt=0, description="τ, the temperature; small is hard")

    terms = {"ce": "cross-entropy", "nce": "λ·L_NCE"}
    uploads = downloads = {"prototypes": "mean features, and P̄", "classes": "of which classes"}

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """Send P̄."""
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Return P̄^c/(τ·‖P̄^c‖), C×K, and the classes that have one; {} before any P̄ arrives."""
        if "prototypes" not in client.received:
            return {}
        P, known = client.received.table("prototypes", client.num_classes, client.feature_dim)
        return {"P": normalize(P) / client.config.tau, "known": known}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Return the terms of L_i; a class without a prototype adds nothing to L_NCE."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants:
            rows = cross_entropy(_scores(output.features, **constants), batch.y, reduction="none")
            terms["nce"] = client.config.lambda_ * rows.where(constants["known"][batch.y], 0).mean()
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send P_i^c, without counts."""
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Return P̄."""
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes, server.feature_dim)
        mean, known = pf.functional.aggregate_prototypes(P, present, "uniform")
        return pf.class_rows(known, prototypes=mean)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return scores by cosine; use the head before the first prototypes arrive."""
        z, constants = client.features(x), self.before_training(client)
        return _scores(z, **constants) if constants else client.head(z)


def _scores(z: Tensor, P: Tensor, known: Tensor) -> Tensor:
    """Return cos(z, P̄^c)/τ, B×C, with −∞ for classes without a prototype."""
    return (normalize(z.float()) @ P.T).masked_fill(~known, -torch.inf)

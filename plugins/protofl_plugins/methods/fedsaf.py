"""FedSAF: clients align how classes lie to each other, not where each class lies.

"From Coordinate Matching to Structural Alignment: Rethinking Prototype Alignment in Heterogeneous
Federated Learning", 2026 (arXiv 2605.05959). Of the paper we could read the abstract alone: the
equations are those of the published code (FedStruct in github.com/XinghaoWu/FedTSP_CVPR26) as we
describe them, and we take its GCSA and RCSA to be ``cka`` and ``rdm_cos``.

    P_i^c   client i's prototype of class c: mean feature of its samples
    P̄^c    global prototype: FedProto's mean of the P_i^c
    X, Y    the batch's mean feature, and P̄, of each class of the batch that has a P̄^c
    L_i     E ℓ(h_i(f_i(x)), y) + λ·S(X, Y), with S = 0 for fewer than two classes

    cka        1 − ⟨G_X, G_Y⟩/(‖G_X‖·‖G_Y‖), G the Gram matrix of centred rows
    rdm_cos    1 − cos(D_X, D_Y), D the distances of all pairs of rows
    gram_mse   mean (G_X − G_Y)², of unit rows, centred
    rdm_mse    mean (D_X − D_Y)²

Inference: the client's own head. The published code can also align samples (γ), and rotate
prototypes before their mean; both are left out.

**Native widths are ours.** G and D have one row for each class at any width, so S compares spaces
of different widths, but their rows have no mean. So the server takes a mean P̄_K for each width K
over the clients of that width and sends all of them. S is the mean of S(X, P̄_K) over the widths.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.prototype_methods import (
    KeptConfig,
    SendsMeans,
    mean_prototypes,
    with_absent,
)


class FedSAF(SendsMeans):
    """Clients align the relations between classes, also across feature widths (FedSAF, 2026)."""

    class Config(KeptConfig):
        """Options, with the symbols above."""

        lambda_: float = pf.Field(
            1.0, alias="lambda", ge=0, description="λ of structure; 0 regresses to local training"
        )
        structure: Literal["cka", "rdm_cos", "gram_mse", "rdm_mse"] = pf.Field(
            "cka", description="S, the difference of two structures"
        )

    native_widths = True
    terms = {
        "ce": "cross-entropy",
        "structure": "λ·S(X, Y), of the batch's classes; with native widths the mean over them",
    }
    downloads = {
        "prototypes": "P̄^c of the classes that anybody has sent",
        "prototypes/*": "with native widths in its place: P̄_K^c of each width K",
    }
    ablations = {
        "without structural alignment": "--set lambda=0",
        "RCSA in place of GCSA": "--set structure=rdm_cos",
    }

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """P̄, or P̄_K of all widths."""
        return server.knowledge.select("prototypes", "prototypes/*")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """P̄ or each P̄_K as a table C×K, with the mask of known classes."""
        names = ["prototypes"] if "prototypes" in client.received else []
        names += [n for n in client.received if n.startswith("prototypes/") and "." not in n]
        return {"tables": [client.received.table(name, client.num_classes) for name in names]}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """L_i."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given["tables"]:
            config = client.config
            X, counts = F.class_means(output.features, batch.y, client.num_classes)
            found = [
                F.structural_loss(X, Y, known & (counts > 0), config.structure)
                for Y, known in given["tables"]
            ]
            terms["structure"] = config.lambda_ * torch.stack(found).mean()
        return terms

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[KeptConfig], uploads: pf.Uploads) -> pf.Payload:
        """P̄, or P̄_K of each width."""
        config = server.config
        if len(server.feature_dims) == 1:
            return super().server_aggregate(server, uploads)
        changed = pf.Payload()
        for K in server.feature_dims:
            own = {i: u for i, u in uploads.items() if server.clients[i].feature_dim == K}
            name = f"prototypes/{K}"
            if own:
                mean, known = mean_prototypes(server, own, config.aggregate, K)
                mean, known = with_absent(server, mean, known, config.absent, name)
                classes = known.nonzero().squeeze(1)
                changed |= {name: mean[classes], f"{name}.classes": classes}
            elif config.absent == "forget" and name in server.knowledge:
                none = {n: server.knowledge[n][:0] for n in (name, f"{name}.classes")}
                changed |= none
        return changed

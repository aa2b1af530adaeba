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

Inference: the client's own head. The published code can also align samples (γ), and rotate
prototypes before their mean; both are left out.

**Native widths are ours.** G and D have one row for each class at any width, so S compares spaces
of different widths, but their rows have no mean. So the server takes a mean P̄_K for each width K
over the clients of that width and sends all of them. S is the mean of S(X, P̄_K) over the widths.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.prototypes import (
    MEANS,
    WHEN_ONLINE,
    MeansConfig,
    collect_online,
    mean_prototypes,
    sent_prototypes,
    with_absent,
)

Structure = Literal["cka", "rdm_cos"]


class FedSAF:
    """Clients align the relations between classes, also across feature widths (FedSAF, 2026)."""

    class Config(MeansConfig):
        """Options, with the symbols above; shared: collect, aggregate, absent."""

        official = {"drop_last": True}

        lambda_: float = pf.Field(
            1.0, alias="lambda", ge=0, description="λ of structure; 0 regresses to local training"
        )
        structure: Structure = pf.Field("cka", description="S, the difference of two structures")

    native_widths = True
    asynchronous = True
    terms = {
        "ce": "cross-entropy",
        "structure": "λ·S(X, Y), of the batch's classes; with native widths the mean over them",
    }
    uploads = {
        **MEANS,
        "counts": "|D_i,c|, the class distribution (not with aggregate=uniform)",
    }
    downloads = {
        "prototypes": "P̄^c of the classes that anybody has sent",
        "prototypes/*": pf.Key(
            "[n, WIDTH]", "with native widths in its place: P̄_K^c of each width K"
        ),
    }
    ablations = {
        "without structural alignment": "--set lambda=0",
        "RCSA in place of GCSA": "--set structure=rdm_cos",
    }

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """P̄, or P̄_K of all widths."""
        return server.global_state.select("prototypes", "prototypes/*")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """P̄ or each P̄_K as a table C×K, with the mask of known classes."""
        names = ["prototypes"] if "prototypes" in client.received else []
        names += [n for n in client.received if n.startswith("prototypes/") and "." not in n]
        return {"tables": [client.received.table(name, client.num_classes) for name in names]}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_i."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants["tables"]:
            config = client.config
            X, counts = F.class_means(output.features, batch.y, client.num_classes)
            losses = [
                structural_loss(X, Y, known & (counts > 0), config.structure)  # S(X, Y)
                for Y, known in constants["tables"]
            ]
            terms["structure"] = config.lambda_ * torch.stack(losses).mean()
        return terms

    after_batch = staticmethod(collect_online)
    after_batch_if = WHEN_ONLINE
    upload_payload = staticmethod(sent_prototypes)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """P̄, or P̄_K of each width."""
        config = server.config
        if len(server.feature_dims) == 1:
            mean, known = mean_prototypes(server, uploads, config.aggregate)
            mean, known = with_absent(server, mean, known, config.absent)
            return pf.class_rows(known, prototypes=mean)
        changed = pf.Payload()
        for K in server.feature_dims:
            same_width = {i: u for i, u in uploads.items() if server.clients[i].feature_dim == K}
            name = f"prototypes/{K}"
            if same_width:
                mean, known = mean_prototypes(server, same_width, config.aggregate, K)
                mean, known = with_absent(server, mean, known, config.absent, name)
                classes = known.nonzero().squeeze(1)
                changed |= {name: mean[classes], f"{name}.classes": classes}
            elif config.absent == "forget" and name in server.global_state:
                none = {n: server.global_state[n][:0] for n in (name, f"{name}.classes")}
                changed |= none
        return changed


def structural_loss(x: Tensor, y: Tensor, known: Tensor, kind: Structure = "cka") -> Tensor:
    """Return S(X, Y) of n classes, a scalar; 0 for n < 2.

    S does not see a common factor of all rows, nor any difference of two rows alone.

    Args:
        x: X, C×K.
        y: Y, C×K'.
        known: [C] bool, the n rows to compare; the others are not looked at.
        kind: One of the two above.
    """
    dtype, unknown, n = y.dtype, ~known.unsqueeze(1), known.sum()
    least = torch.finfo(dtype).tiny ** 0.5  # equal rows have no direction, and no gradient

    def relations(rows: Tensor) -> Tensor:
        """G or D as a vector of length 1, [C·C], 0 where a row is unknown."""
        rows = rows.to(dtype).masked_fill(unknown, 0.0)
        if kind == "cka":
            rows = (rows - rows.sum(0) / n.clamp_min(1)).masked_fill(unknown, 0.0)
            related = rows @ rows.T
        else:  # both triangles are equal, so their cosine is that of the upper ones
            related = F.prototype_distance(rows, rows).masked_fill(unknown | unknown.T, 0.0)
        return normalize(related.flatten(), dim=0, eps=least)

    return (1 - (relations(x) * relations(y)).sum()) * (n > 1)

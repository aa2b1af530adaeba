"""FedProto: clients are guided by the mean of all clients' prototypes.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022; the
equations are numbered as in FedTGP (Zhang et al., AAAI 2024), which restates them.

    P_i^c   client i's prototype of class c: mean feature of its samples          (Eq. 2)
    P̄^c    global prototype: Σ_{i in N_c} |D_i,c|/N_c · P_i^c                     (Eq. 3)
    L_i     E ℓ(h_i(f_i(x)), y) + λ·E_{c ~ C_i} φ(P_i^c, P̄^c)                     (Eq. 4)

Inference: the class of the nearest global prototype; the head, before there are any.

Eq. 3 as printed divides by |N_c| once more, which shrinks prototypes, as the weights sum to 1
already: ``aggregate=eq3``. The default ``weighted`` leaves that division out. With ρ < 1 a class
may be absent from a round; it keeps its last prototype (``absent``).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import protofl as pf
from protofl_plugins.shared.prototypes import (
    MEANS,
    GuideConfig,
    MeansConfig,
    class_prototypes,
    guide,
    guide_weight,
    guides,
    mean_prototypes,
    nearest_prototype,
    with_absent,
)


class FedProto:
    """Clients are guided by the mean of all clients' prototypes (Tan et al., 2022)."""

    class Config(MeansConfig, GuideConfig):
        """Options, with the paper's symbols.

        Shared: lambda, distance, align, collect, aggregate, absent.
        """

        official = {"drop_last": True}
        deviations = MeansConfig.deviations | GuideConfig.deviations

    tasks = ("classification", "multilabel")
    asynchronous = True
    terms = {
        "ce": "cross-entropy, the first part of Eq. 4",
        "align": "λ·E_c φ(P_i^c, P̄^c), the second part of Eq. 4",
    }
    uploads = {
        **MEANS,
        "counts": "|D_i,c|, the class distribution (not with aggregate=uniform)",
    }
    downloads = {
        "prototypes": pf.Key("[n, K]", "P̄^c of the classes that anybody has sent", by_class=True)
    }

    @pf.hookimpl
    def resolve(self, config: Config) -> dict[str, Any]:
        """λ, with the default that belongs to the distance."""
        return {"lambda_": guide_weight(config.lambda_, config.distance)}

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """P̄."""
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """P̄ as a table C×K, and the classes that have one."""
        return guides(client)

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 4."""
        terms = {"ce": client.task.loss(output.logits, batch.y)}
        if constants:  # λ·E_c φ(P_i^c, P̄^c)
            terms["align"] = guide(client.config, output.features, batch.y, **constants)
        return terms

    @pf.hookimpl
    def after_batch(self, client: pf.Client[Config], batch: pf.Batch, output: pf.Output) -> None:
        """Add the batch to the sums of P_i^c (Eq. 2), if they are taken during training."""
        if client.config.collect == "online":
            client.collect_prototypes(batch, output)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_i^c (Eq. 2), with counts if Eq. 3 weights by them."""
        return class_prototypes(client, client.config.aggregate)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """P̄ (Eq. 3)."""
        P, known = mean_prototypes(server, uploads, server.config.aggregate)
        P, known = with_absent(server, P, known, server.config.absent)
        return pf.class_rows(known, prototypes=P)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """The nearest P̄^c; the head, before there are any."""
        return nearest_prototype(client, x)

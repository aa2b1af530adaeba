"""FPL: FedAvg with clustered prototypes, for clients of different domains.

Huang et al., "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023.

    c_m^k    client m's prototype of class k: mean feature of its samples              (Eq. 2)
    𝒫^k      cluster prototypes: means of the FINCH clusters of all clients' c_m^k     (Eq. 4, 5)
    𝒰^k      unbiased prototype: mean of 𝒫^k                                           (Eq. 6)
    s(z, c)  cos(z, c)/τ                                                               (Eq. 7)
    CPCL     −log( Σ_{c ∈ 𝒫^y} e^{s(z, c)} / Σ_{c ∈ 𝒫} e^{s(z, c)} )                   (Eq. 8)
    UPCR     Σ_v (z_v − 𝒰_v^y)²                                                        (Eq. 10)
    L        CE + CPCL + UPCR                                                          (Eq. 11, 12)
    server   θ ← Σ_m |D_m|/|D| · θ_m                                                   (Alg. 1)

As printed, Eq. 7 multiplies the cosine by τ; the text (a small τ concentrates) and the published
code divide by it. The paper sends 𝒰 too; here clients take it from 𝒫. A class that no client of
the round has keeps its prototypes (``absent``), which the paper leaves open. CPCL and UPCR start
in the second round, and are 0 for a class without prototypes. Inference is by the shared model.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights
from protofl_plugins.shared.clusters import Clusters, clustered, contrast, with_absent_rows
from protofl_plugins.shared.prototypes import (
    MEANS,
    WHEN_ONLINE,
    Absent,
    class_prototypes,
    sent_rows,
)


class FPL:
    """Cluster and unbiased prototypes guide the clients of FedAvg (Huang et al., 2023)."""

    class Config(weights.ModelSharingConfig, pf.VariantConfig):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

        deviations = {
            "collect": pf.Deviation(
                "Eq. 2",
                "eval",
                "online",
                "the code collects in train mode, before each step of the last epoch",
            ),
            "clusters": pf.Deviation(
                "Eq. 4",
                "first",
                "finch",
                "the equation links prototypes once, the code clusters the means of clusters too",
            ),
            "distance": pf.Deviation(
                "Eq. 10", "squared", "mse", "the code takes the mean over dimensions, not the sum"
            ),
            "absent": pf.Deviation(
                "Eq. 5", "keep", "forget", "the code knows only the classes of this round's clients"
            ),
        }
        tau: float = pf.Field(
            0.02,
            gt=0,
            description="τ, temperature of CPCL; small values pull to the nearest prototype of the "
            "class, large ones remove CPCL",
        )
        collect: Literal["eval", "online"] = pf.Field(
            None,
            description="take prototypes in an evaluation pass after training, or in the last "
            "epoch of training",
        )
        clusters: Clusters = pf.Field(
            None,
            description="𝒫^k: means of FINCH's first partition (Eq. 4), of its last (finch), or "
            "the mean of all clients, the global prototype of Eq. 3",
        )
        distance: Literal["squared", "mse"] = pf.Field(
            None, description="UPCR: squared distance, or squared distance / K"
        )
        absent: Absent = pf.Field(
            None, description="𝒫^k of a class that no client of the round has: the last, or none"
        )

    asynchronous = "versions"
    terms = {
        "ce": "cross-entropy, Eq. 11",
        "cpcl": "contrast with the cluster prototypes of all classes, Eq. 8",
        "upcr": "squared distance to the unbiased prototype of the class, Eq. 10",
    }
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "|D_m|, the number of training samples",
        **MEANS,
    }
    downloads = {
        **weights.DOWNLOADS,
        "prototypes": "𝒫^k of the classes that anybody has sent",
    }
    download_rules = {"classes": "several"}
    ablations = {
        "without CPCL (Table 1)": "--drop local_loss.cpcl",
        "without UPCR (Table 1)": "--drop local_loss.upcr",
        "global prototypes (Fig. 5, Table 3)": "--set clusters=mean",
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Take the paper's learning rate: at 0.03 UPCR diverges in nets without norm layers."""
        return {"lr": 0.01}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # θ

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send θ and 𝒫."""
        return server.global_state.select("model/*", "prototypes")

    receive = weights.MODEL.receive  # θ_m ← θ

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Return 𝒫 [n, K], the class of each row, and 𝒰 [C, K] with the mask of known classes."""
        if "prototypes" not in client.received:
            return {}
        P, classes = client.received.rows("prototypes", client.feature_dim)
        U, counts = F.class_means(P, classes, client.num_classes)  # Eq. 6
        return {"P": P, "classes": classes, "U": U, "known": counts > 0}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 12."""
        config, z, y = client.config, output.features, batch.y
        terms = {"ce": cross_entropy(output.logits, y)}
        if constants:
            P, U, known = constants["P"], constants["U"], constants["known"]
            s = similarity(z, P, config.tau)
            terms["cpcl"] = contrast(s, y, constants["classes"]).mean()
            distance = F.prototype_alignment(z, y, U, known, "mse")
            scale = z.shape[1] if config.distance == "squared" else 1
            terms["upcr"] = scale * distance
        return terms

    after_batch_if = WHEN_ONLINE

    @pf.hookimpl
    def after_batch(self, client: pf.Client[Config], batch: pf.Batch, output: pf.Output) -> None:
        """Add a batch of the last epoch to the sums of c_m^k (Eq. 2)."""
        step = client.scratch["step"] = client.scratch.get("step", 0) + 1
        if step > client.steps - client.epoch_steps:
            client.collect_prototypes(batch, output)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send θ_m, |D_m| and c_m^k (Eq. 2)."""
        sent = weights.MODEL.upload_payload(client)
        return pf.Payload(sent | class_prototypes(client, "uniform"))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the models (Alg. 1), and cluster the prototypes of each class (Eq. 5)."""
        averaged, config = weights.MODEL.server_aggregate(server, uploads), server.config
        rows, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        P, classes = clustered(rows, labels, config.clusters)
        if config.absent == "keep":
            P, classes = with_absent_rows(server, P, classes)
        return pf.Payload(averaged, prototypes=P, classes=classes)

    global_models = weights.MODEL.global_models


def similarity(z: Tensor, P: Tensor, tau: float) -> Tensor:
    """Return s of features B×K and prototypes n×K, B×n (Eq. 7)."""
    return normalize(z, dim=1) @ normalize(P.to(z.dtype), dim=1).T / tau

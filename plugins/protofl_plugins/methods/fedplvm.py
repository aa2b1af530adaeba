"""FedPLVM: several prototypes of each class, clustered on clients and again on the server.

Wang et al., "Taming Cross-Domain Representation Variance in Federated Prototype Learning with
Heterogeneous Data Domains", NeurIPS 2024 (arXiv 2403.09048).

    P_i^c    client i's prototypes of class c: means of the FINCH clusters of its features
    𝒫^c      the server's: means of the FINCH clusters of all clients' P_i^c;  P̄^c their mean
    s(f, P)  cos(f, P)^α, with α < 1: the features of a class may spread less
    ℓ_α      −log( Σ_{P ∈ 𝒫^y} e^{s(f, P)/τ} / Σ_{P ∈ 𝒫} e^{s(f, P)/τ} )       (α-sparsity)
    ℓ_c      2·(cos(f, P̄^y) − 1)²                                              (correction)
    L_i      E ℓ(h_i(f_i(x)), y) + λ·E (ℓ_α + ℓ_c)

With ``share = model`` the server also averages the models, as FedAvg. Inference: the head.

The power of a negative cosine is NaN, and its slope at 0 is infinite: cosines in s are at least
``LEAST``. P̄^c follows from 𝒫^c, so it is not sent. A class that no client of the round has keeps
its prototypes.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights
from protofl_plugins.shared.clusters import clustered, contrast, with_absent_rows
from protofl_plugins.shared.prototypes import sent_rows

LEAST = 1e-4
"""Smallest cosine whose power is taken."""

MOST = 256
"""Prototypes of a class that an upload may hold."""

Clusters = Literal["finch", "mean"]


class FedPLVM:
    """Several prototypes a class guide clients of different domains (Wang et al., 2024)."""

    class Config(weights.ModelSharingConfig):
        """Options, with the paper's symbols; shared: aggregate, buffers."""

        lambda_: float = pf.Field(
            100.0, alias="lambda", ge=0, description="λ of ℓ_α + ℓ_c; 0 regresses to no prototypes"
        )
        alpha: float = pf.Field(
            0.25, gt=0, le=1, description="α, exponent of cosines; 1: no sparsity"
        )
        tau: float = pf.Field(0.07, gt=0, description="τ, temperature of ℓ_α")
        correction: bool = pf.Field(True, description="add ℓ_c, which α < 1 makes necessary")
        local: Clusters = pf.Field(
            "finch", description="prototypes of a client's class: cluster means, or one mean"
        )
        server: Clusters = pf.Field(
            "finch", description="prototypes of all clients' class: cluster means, or one mean"
        )
        share: Literal["model", "nothing"] | None = pf.Field(
            None,
            description="average the models too, as the published code; None: if all clients have "
            "one architecture",
        )

    asynchronous = "versions"
    terms = {
        "ce": "cross-entropy",
        "sparsity": "λ·E ℓ_α, contrast with the prototypes of all classes",
        "correction": "λ·E ℓ_c, distance to the mean prototype of the class",
    }
    uploads = {
        **weights.UPLOADS,
        "prototypes": "P_i^c, several of each class: means of clusters of features",
        "classes": "the class of each; how often it occurs tells the number of clusters",
    }
    downloads = {
        **weights.DOWNLOADS,
        "prototypes": "𝒫^c of the classes that anybody has sent",
    }
    native_widths = False
    upload_rules = {"classes": f"several {MOST}"}
    download_rules = {"classes": "several"}
    ablations = {
        "without α-sparsity": "--set alpha=1",
        "without correction": "--set correction=false",
        "one prototype of a client's class": "--set local=mean",
        "one global prototype of a class": "--set server=mean",
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """The paper's learning rate: at 0.03 λ = 100 diverges in nets without norm layers."""
        return {"lr": 0.01}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require a single architecture where models are averaged."""
        return weights.MODEL.requires(run, config) if config.share == "model" else []

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """Share models where all clients have one architecture."""
        return {"share": config.share or ("model" if run.homogeneous else "nothing")}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """w, where models are averaged."""
        if server.config.share != "model":
            return pf.Payload()
        return weights.MODEL.setup_server(server)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """𝒫, and w where models are averaged."""
        return server.global_state.select("prototypes", "model/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w, where models are averaged."""
        if client.config.share == "model":
            weights.MODEL.receive(client)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """𝒫 [n, K], the class of each row, and P̄ [C, K] with the mask of known classes."""
        if "prototypes" not in client.received:
            return {}
        P, classes = client.received.rows("prototypes", client.feature_dim)
        means, counts = F.class_means(P, classes, client.num_classes)
        return {"P": P, "classes": classes, "means": means, "known": counts > 0}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_i."""
        config, f, y = client.config, output.features, batch.y
        terms = {"ce": cross_entropy(output.logits, y)}
        if constants:
            P, classes = constants["P"], constants["classes"]
            sparsity = sparse_contrast(f, y, P, classes, config.alpha, config.tau)
            terms["sparsity"] = config.lambda_ * sparsity.mean()
            distance = correction(f, y, constants["means"], constants["known"])
            terms["correction"] = config.lambda_ * config.correction * distance.mean()
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_i^c of an evaluation pass after training, and w_i where models are averaged."""
        shares = client.config.share == "model"
        sent = weights.MODEL.upload_payload(client) if shares else pf.Payload()
        f, y = client.train_features()
        P, classes = clustered(f, y, client.config.local)
        return pf.Payload(sent, prototypes=P, classes=classes)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """𝒫, and w where models are averaged."""
        averaged, config = pf.Payload(), server.config
        if config.share == "model":
            averaged = weights.MODEL.server_aggregate(server, uploads)
        rows, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        P, classes = with_absent_rows(server, *clustered(rows, labels, config.server))
        return pf.Payload(averaged, prototypes=P, classes=classes)

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """w, where models are averaged."""
        if server.config.share != "model":
            return {}
        return weights.shared_model(server)


def sparse_contrast(
    f: Tensor, y: Tensor, P: Tensor, classes: Tensor, alpha: float, tau: float
) -> Tensor:
    """Return ℓ_α of features B×K with labels [B], [B]; 0 where a class has no prototype.

    Args:
        f: The features.
        y: Their labels.
        P: 𝒫, n×K.
        classes: The class of each prototype, [n].
        alpha: α.
        tau: τ.
    """
    cosines = normalize(f, dim=1) @ normalize(P.to(f.dtype), dim=1).T  # B×n
    s = cosines.clamp(min=LEAST) ** alpha / tau
    return contrast(s, y, classes)


def correction(f: Tensor, y: Tensor, means: Tensor, known: Tensor) -> Tensor:
    """Return ℓ_c of features B×K with labels [B] to P̄ [C, K], [B]; 0 for an unknown class."""
    target = normalize(means.to(f.dtype)[y], dim=1)
    cosines = (normalize(f, dim=1) * target).sum(1)
    return (2 * (cosines - 1) ** 2).masked_fill(~known[y], 0.0)

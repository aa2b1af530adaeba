"""FedSA: semantic anchors guide features, enforce margins and calibrate heads.

Zhou et al., "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based
Federated Learning", AAAI 2025.

    Ā       semantic anchors C×K: random class anchors A through an embedding h_ψ
    P_i^c   client i's prototype of class c                                       (Eq. 2)
    P̄^c    Σ_{i in N_c} |D_i,c|/N_c · P_i^c                                       (Eq. 3)
    L_R     Σ_{c in D_i} d(P_i^c, Ā^c)                                            (Eq. 5)
    d_i     1/(N−1)² Σ_a Σ_{b≠a} d(P_i^a, P_i^b),  d_i* = max(d_global, d_i)      (Eq. 6)
    L_MCL   −log( e^−(d(P_i^c, Ā^c)+d_i*) / (… + Σ_c' e^−d(P_i^c, Ā^c')) )        (Eq. 7)
    L_CC    −1/C Σ_c log softmax_c(φ_i · Ā^c), φ_i the head's weight, no bias      (Eq. 8)
    L_i     L_S + λ₁·L_R + λ₂·L_MCL + λ₃·L_CC                                     (Eq. 9)
    Ā       ← α·Ā + (1−α)·P̄                                                      (Eq. 10)

d_global is Eq. 6 of the anchors. d_i is that of the client's last training; in its first one
there is none and d_global decides. Eq. 7 is averaged over the batch's classes. Eq. 6 is 0 for a
client with one class, where d_global decides too. h_ψ (two blocks FC–BN–ReLU) is applied once.

Inference is not stated. The default is the nearest anchor: anchors are what all clients are
pulled to, they exist for every class, and cost no further traffic.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import protofl as pf
from protofl import functional as F
from protofl_plugins.prototype_methods import (
    Averaged,
    AveragedConfig,
    class_prototypes,
    guide_weight,
    mean_prototypes,
    nearest_prototype,
    received_prototypes,
    with_absent,
)


class FedSA(Averaged):
    """Semantic anchors guide features, enforce margins, calibrate heads (Zhou et al., 2025)."""

    class Config(AveragedConfig):
        """Options, with the paper's symbols."""

        deviations = AveragedConfig.deviations | {
            "distance": pf.Deviation(
                "Eq. 5", "l2", "mse", "λ₁ = 0.1 and 10 belong to two different losses"
            ),
            "align": pf.Deviation(
                "Eq. 5", "class", "sample", "the equation sums over P_i^c, the code means samples"
            ),
            "contrast": pf.Deviation(
                "Eq. 7", "class", "sample", "the equation takes P_i^c, the code each sample"
            ),
            "margin": pf.Deviation(
                "Eq. 6", "mean", "nearest", "the code takes the mean distance to the nearest class"
            ),
            "bias": pf.Deviation(
                "Eq. 8", False, True, "the code calibrates the whole head, with its bias"
            ),
            "ema": pf.Deviation(
                "Eq. 10", "all", "uploaded", "the code moves only anchors of classes of the round"
            ),
            "inference": pf.Deviation(
                "not stated", "anchor", "prototype", "the code takes this round's mean prototypes"
            ),
        }
        lambda_1: float = pf.Field(
            None, ge=0, description="λ₁ of L_R. None: 0.1 for distance=l2, 10 for mse"
        )
        lambda_2: float = pf.Field(
            None, ge=0, description="λ₂ of L_MCL. None: 1, or 0.01 where all have one architecture"
        )
        lambda_3: float = pf.Field(1.0, ge=0, description="λ₃ of L_CC")
        alpha: float = pf.Field(
            0.9999, ge=0, le=1, description="α of Eq. 10; 1 keeps the anchors, 0 regresses to P̄"
        )
        embedding: bool = pf.Field(True, description="h_ψ; false takes the random anchors A")
        distance: Literal["l2", "mse"] = pf.Field(None, description="d of L_R")
        align: Literal["class", "sample"] = pf.Field(
            None, description="L_R of the batch's class means (sum), or of samples (mean)"
        )
        contrast: Literal["class", "sample"] = pf.Field(
            None, description="L_MCL of the batch's class means, or of samples"
        )
        margin: Literal["mean", "nearest"] = pf.Field(
            None, description="d_i and d_global: Eq. 6, or mean distance to the nearest class"
        )
        bias: bool = pf.Field(
            None,
            description="the head's bias in L_CC (Eq. 8 has none); a head of several layers "
            "always has its biases",
        )
        ema: Literal["all", "uploaded"] = pf.Field(
            None,
            description="move the anchors of all classes (towards the last known P̄^c), or of "
            "those that were uploaded this round",
        )
        inference: Literal["anchor", "prototype", "head"] = pf.Field(
            None, description="nearest anchor, nearest prototype of this round, or the head"
        )

    terms = {
        "ce": "L_S, cross-entropy",
        "align": "λ₁·L_R, Eq. 5",
        "mcl": "λ₂·L_MCL, Eq. 7",
        "calibration": "λ₃·L_CC, Eq. 8",
    }
    downloads = {
        "prototypes": "Ā of all classes",
        "global_prototypes": "P̄ of this round, with inference=prototype only",
    }
    ablations = {
        "EMA, L_R (Table 4)": (
            "--set embedding=false --drop local_loss.mcl --drop local_loss.calibration"
        ),
        "EMA, L_R, ER (Table 4)": "--drop local_loss.mcl --drop local_loss.calibration",
        "EMA, L_R, ER, L_CC (Table 4)": "--drop local_loss.mcl",
        "EMA, L_R, ER, L_MCL (Table 4)": "--drop local_loss.calibration",
    }

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """λ₂ by the kind of heterogeneity ("Implementation details"), λ₁ by the distance."""
        changes = {"lambda_1": guide_weight(config.lambda_1, config.distance)}
        if config.lambda_2 is None:
            changes["lambda_2"] = 0.01 if run.homogeneous else 1.0
        return changes

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Ā = h_ψ(A), the anchors before any update."""
        C, K = server.num_classes, server.feature_dim
        A = torch.randn(C, K, generator=server.generator("anchors"))
        if server.config.embedding:
            blocks = [m for _ in (1, 2) for m in (nn.Linear(K, K), nn.BatchNorm1d(K), nn.ReLU())]
            A = nn.Sequential(*blocks)(A).detach()
        server.state["anchors"] = A.to(server.device)
        return self._payload(server)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Ā, and P̄ where inference needs it."""
        return server.knowledge.select("prototypes", "global_prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """Ā as a table C×K, and what d_i* = max(d_global, d_i) adds to distances in Eq. 7."""
        if "prototypes" not in client.received:
            return {}
        anchors, known = received_prototypes(client)
        margin = _margin(client.config)(anchors, known)
        if "margin" in client.state:
            margin = torch.maximum(margin, client.state["margin"])
        every = torch.arange(client.num_classes, device=anchors.device)
        penalty = F.margin_penalty(every, client.num_classes, margin, known, anchors.dtype)
        return {"anchors": anchors, "known": known, "penalty": penalty}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Eq. 9."""
        L_S = cross_entropy(output.logits, batch.y)
        if not given:
            return {"ce": L_S}
        config = client.config
        L_R, L_MCL = F.anchor_terms(  # Eq. 5 and 7
            output.features,
            batch.y,
            **given,
            distance=config.distance,
            align=config.align,
            contrast=config.contrast,
        )
        L_CC = F.anchor_calibration(_scores(client, given["anchors"]), given["known"])  # Eq. 8
        return {
            "ce": L_S,
            "align": config.lambda_1 * L_R,
            "mcl": config.lambda_2 * L_MCL,
            "calibration": config.lambda_3 * L_CC,
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """d_i (Eq. 6), for the client's next round."""
        table, known = client.class_prototypes().table("prototypes", client.num_classes)
        client.state["margin"] = _margin(client.config)(table, known)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_i^c (Eq. 2), with counts if Eq. 3 weights by them."""
        return class_prototypes(client, client.config.aggregate)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """P̄ (Eq. 3), then the moving average of the anchors (Eq. 10)."""
        config, state = server.config, server.state
        mean, known = mean_prototypes(
            server, uploads, config.aggregate, server.feature_dim
        )  # Eq. 3
        # All classes move, towards the last known mean, or those of the round.
        target, moves = with_absent(
            server, mean, known, "keep" if config.ema == "all" else "forget"
        )
        state["anchors"] = F.ema(state["anchors"], target, config.alpha, moves)  # Eq. 10
        payload = self._payload(server)
        if config.inference == "prototype":
            payload["global_prototypes"] = mean[known]
            payload["global_prototypes.classes"] = known.nonzero().squeeze(1)
        return payload

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Nearest anchor, nearest prototype of this round, or the head."""
        if client.config.inference == "head":
            return client.head(client.features(x))
        anchor = client.config.inference == "anchor"
        return nearest_prototype(client, x, "prototypes" if anchor else "global_prototypes")

    @staticmethod
    def _payload(server: pf.Server) -> pf.Payload:
        every = torch.ones(server.num_classes, dtype=torch.bool, device=server.device)
        return pf.class_rows(every, prototypes=server.state["anchors"])


def _margin(config: FedSA.Config) -> Any:  # noqa: ANN401 - a function of prototypes and mask
    """Eq. 6, or what published code takes in its place."""
    return F.mean_margin if config.margin == "mean" else F.mean_nearest_margin


def _scores(client: pf.Learner[FedSA.Config], anchors: Tensor) -> Tensor:
    """φ_i · Ā: by the weight of the last linear layer alone, or by the whole head."""
    head = client.module("head")
    if client.config.bias or not isinstance(head, nn.Linear):
        return client.head(anchors)
    return linear(anchors, head.weight)

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

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.prototypes import (
    MEANS,
    WHEN_ONLINE,
    SentMeansConfig,
    collect_online,
    guide_weight,
    mean_prototypes,
    of_all_classes,
    received_prototypes,
    scores_by_distance,
    sent_prototypes,
    with_absent,
)

Rows = Literal["class", "sample"]


class FedSA:
    """Semantic anchors guide features, enforce margins, calibrate heads (Zhou et al., 2025)."""

    class Config(SentMeansConfig):
        """Options, with the paper's symbols; shared: collect, aggregate."""

        official = {"drop_last": True}
        deviations = SentMeansConfig.deviations | {
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
        align: Rows = pf.Field(
            None, description="L_R of the batch's class means (sum), or of samples (mean)"
        )
        contrast: Rows = pf.Field(
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

    asynchronous = True
    terms = {
        "ce": "L_S, cross-entropy",
        "align": "λ₁·L_R, Eq. 5",
        "mcl": "λ₂·L_MCL, Eq. 7",
        "calibration": "λ₃·L_CC, Eq. 8",
    }
    uploads = {
        **MEANS,
        "counts": "|D_i,c|, the class distribution (not with aggregate=uniform)",
    }
    downloads = {
        "prototypes": "Ā of all classes",
        "global_prototypes": pf.Key(
            "[n, K]", "P̄ of this round, with inference=prototype only", by_class=True
        ),
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
        return of_all_classes(server.state["anchors"])

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Ā, and P̄ where inference needs it."""
        return server.global_state.select("prototypes", "global_prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Ā as a table C×K, d_i* = max(d_global, d_i), and what it adds to distances in Eq. 7."""
        if "prototypes" not in client.received:
            return {}
        anchors, known = received_prototypes(client)
        margin = average_margin(client.config, anchors, known)  # d_global, Eq. 6
        if "margin" in client.state:
            margin = torch.maximum(margin, client.state["margin"])
        penalty = margin_penalty(margin, known, anchors.dtype)
        return {"anchors": anchors, "known": known, "margin": margin, "penalty": penalty}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 9."""
        L_S = cross_entropy(output.logits, batch.y)
        if not constants:
            return {"ce": L_S}
        config, anchors, known = client.config, constants["anchors"], constants["known"]
        rows = rows_of(output.features, batch.y, anchors, known, config)
        L_R = alignment(rows, config.align, config.distance)  # Eq. 5
        L_MCL = contrast(rows, config.contrast, constants["margin"], constants["penalty"])  # Eq. 7
        L_CC = calibration(head_scores(client, anchors), known)  # Eq. 8
        return {
            "ce": L_S,
            "align": config.lambda_1 * L_R,
            "mcl": config.lambda_2 * L_MCL,
            "calibration": config.lambda_3 * L_CC,
        }

    after_batch = staticmethod(collect_online)
    after_batch_if = WHEN_ONLINE

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """d_i (Eq. 6), for the client's next round."""
        table, known = client.class_prototypes().table("prototypes", client.num_classes)
        client.state["margin"] = average_margin(client.config, table, known)

    upload_payload = staticmethod(sent_prototypes)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """P̄ (Eq. 3), then the moving average of the anchors (Eq. 10)."""
        config, state = server.config, server.state
        K = server.feature_dim
        mean, known = mean_prototypes(server, uploads, config.aggregate, K)  # Eq. 3
        # All classes move, towards the last known mean, or those of the round.
        absent: Literal["keep", "forget"] = "keep" if config.ema == "all" else "forget"
        target, moves = with_absent(server, mean, known, absent)
        state["anchors"] = F.ema(state["anchors"], target, config.alpha, moves)  # Eq. 10
        payload = of_all_classes(state["anchors"])
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
        return scores_by_distance(client, x, "prototypes" if anchor else "global_prototypes")


# --- the equations --------------------------------------------------------------------------------


class ClassRows(NamedTuple):
    """P_i^c of a batch, and their distances to the anchors, which Eq. 5 and 7 have in common.

    Attributes:
        distances: d(P_i^c, Ā^c'), C×C; without meaning in the rows of classes that are absent.
        here: [C], 1 for a class that is present and has an anchor, otherwise 0.
        number: |C_i|, the number of classes that are present.
    """

    distances: Tensor
    here: Tensor
    number: Tensor


class BatchRows(NamedTuple):
    """The rows of a batch that are pulled to the anchors: samples and, if used, class means."""

    features: Tensor
    labels: Tensor
    anchors: Tensor
    known: Tensor
    classes: ClassRows | None


def rows_of(
    features: Tensor, labels: Tensor, anchors: Tensor, known: Tensor, config: FedSA.Config
) -> BatchRows:
    """Return a batch's rows; class means and distances are taken once for both equations.

    In a training step the number of operations costs more than the numbers in them.

    Args:
        features: f(x), B×K.
        labels: y, [B].
        anchors: Ā, C×K.
        known: [C] bool, the classes that have an anchor.
        config: With ``align`` and ``contrast``.
    """
    classes = None
    if "class" in (config.align, config.contrast):
        P, counts = F.class_means(features, labels, len(anchors))  # P_i^c of the batch
        d, present = F.prototype_distance(P, anchors), counts > 0
        classes = ClassRows(d, (known & present).to(d.dtype), present.sum())
    return BatchRows(features, labels, anchors, known, classes)


def alignment(rows: BatchRows, of: Rows, distance: Literal["l2", "mse"]) -> Tensor:
    """Return L_R, Σ_c d(P_i^c, Ā^c) (Eq. 5); of samples the mean, as published code has it."""
    if of == "sample" or rows.classes is None:
        return F.prototype_alignment(rows.features, rows.labels, rows.anchors, rows.known, distance)
    d = rows.classes.distances.diagonal()
    return rows.classes.here @ (d if distance == "l2" else d.square() / rows.anchors.shape[1])


def contrast(rows: BatchRows, of: Rows, margin: Tensor, penalty: Tensor) -> Tensor:
    """Return L_MCL (Eq. 7), the mean over the batch's classes, or over its samples.

    A row of class c costs −log softmax_c(−(d + penalty_c)), d its distances to all anchors; one
    whose class has no anchor costs 0.

    Args:
        rows: The batch.
        of: ``class``, or ``sample`` as published code has it.
        margin: d_i*.
        penalty: `margin_penalty` of d_i*.
    """
    if of == "sample" or rows.classes is None:
        z, y = rows.features, rows.labels
        return F.margin_contrastive_loss(z, y, rows.anchors, margin, rows.known)
    d, here, number = rows.classes
    every = torch.arange(len(d), device=d.device)
    return cross_entropy(-(d + penalty), every, weight=here / number, reduction="sum")


def margin_penalty(margin: Tensor, known: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what Eq. 7 adds to the distance of row c to anchor c', C×C.

    d_i* where c = c', even if the class is unknown: a softmax over no class at all has the gradient
    NaN. Elsewhere 0, or infinity for unknown classes.
    """
    diagonal = torch.eye(len(known), dtype=torch.bool, device=known.device)
    return (diagonal.to(dtype) * margin).masked_fill(~(known | diagonal), torch.inf)


def calibration(scores: Tensor, known: Tensor) -> Tensor:
    """Return L_CC (Eq. 8), the mean cross-entropy of anchors by the head.

    Args:
        scores: C×C, row c of the anchor of class c.
        known: [C] bool, the classes that have an anchor, one at least; the others are left out.
    """
    every = torch.arange(len(scores), device=scores.device)
    return cross_entropy(scores, every, weight=known.to(scores.dtype))


def average_margin(config: FedSA.Config, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return d_i or d_global (Eq. 6), or the mean distance to the nearest (published code)."""
    return F.mean_margin(prototypes, known, "pairs" if config.margin == "mean" else "nearest")


def head_scores(client: pf.Learner[FedSA.Config], anchors: Tensor) -> Tensor:
    """Return φ_i · Ā: by the weight of the last linear layer alone, or by the whole head."""
    head = client.module("head")
    if client.config.bias or not isinstance(head, nn.Linear):
        return client.head(anchors)
    return linear(anchors, head.weight)

"""FedORGP: global prototypes are trained on the server to be orthogonal.

Guo et al., "FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization on
Global Prototypes", 2025 (arXiv 2502.16119v2).

    P_k^c      client k's prototype of class c: mean feature of its samples          (Eq. 2)
    P̂^c       F(P̃^c; ω_s): a trainable vector, processed by F = FC–ReLU–FC         (section 3.2)
    s, d       mean ⟨P_k^c, P̂^c⟩, and mean |⟨P_k^c, P̂^c̄⟩| over c̄ ≠ c, both cosines   (Eq. 3, 4)
    L_OR       λ_s·(1 − s) + γ·d                                                     (Eq. 5)
    L_k        E ℓ(h_k(f_k(x)), y) + λ_c·E L_R(f_k(x), P̂^y), L_R = 1 − ⟨·, ·⟩        (Eq. 8)

Eq. 5 is minimised by SGD on mini-batches of the round's client prototypes. No counts are sent.
Inference: the client's own head.

``variant=official`` is the published code (github.com/wisheverybodyhapi/FedORGP) as of the paper's
tables, commit 9a367e2 of 2025-03-15: no P̂ in the first round, no last batch, no shuffling.
``weights=adaptive`` and ``outliers=drop`` are later: they came on 2025-07-10 (commit 2ec9edf).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.engines.server_steps import steps
from protofl_plugins.shared import trained_prototypes as trained
from protofl_plugins.shared.prototypes import MEANS, global_prototypes, guides, sent_rows

THRESHOLD, TEMPERATURE = 0.3, 0.5
"""Constants of the adaptive weights in the published code."""


class FedORGP:
    """Global prototypes are trained on the server to be orthogonal (Guo et al., 2025)."""

    class Config(trained.TrainedConfig):
        """Options, with the paper's symbols; shared: server_lr, processor, send_initial."""

        official = {"drop_last": True, "shuffle": False}

        lambda_c: float = pf.Field(100.0, ge=0, description="λ_c, weight of align (Eq. 8)")
        lambda_s: float = pf.Field(1.0, ge=0, description="λ_s, weight of 1 − s (Eq. 5)")
        gamma: float = pf.Field(10.0, ge=0, description="γ, weight of d (Eq. 5)")
        epochs: int = pf.Field(1, ge=0, description="training epochs on the server")
        server_batch_size: int | None = pf.Field(
            32, ge=1, description="|B_p|, prototypes in a mini-batch. None: the clients'"
        )
        weights: Literal["equal", "adaptive"] = pf.Field(
            "equal",
            description="weights of the terms of 1 − s and d: equal, or 1 + σ((cosine − 0.3)/0.5) "
            "as in the published code since 2025-07-10, after the paper",
        )
        outliers: Literal["keep", "drop"] = pf.Field(
            "keep",
            description="samples far from their class's mean, in P_k^c: keep, or drop as in the "
            "published code since 2025-07-10, after the paper",
        )

    asynchronous = True
    terms = {
        "ce": "cross-entropy, the first part of Eq. 8",
        "align": "λ_c·E L_R(f(x), P̂^y), the second part of Eq. 8",
    }
    uploads = MEANS
    downloads = {"prototypes": "P̂^c of all classes, also of those that the client lacks"}
    ablations = {
        "w/o OR (Table 5)": "--set send_initial=false --use server_train=local "
        "--use server_aggregate=fedproto --set fedproto.aggregate=uniform"
    }

    setup_server = staticmethod(trained.set_up)
    download_payload = staticmethod(global_prototypes)  # P̂
    before_training = staticmethod(guides)

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 8."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if constants:
            L_R = F.cosine_alignment(output.features, batch.y, constants["P"], constants["known"])
            terms["align"] = client.config.lambda_c * L_R
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_k^c (Eq. 2), without counts."""
        if client.config.outliers == "keep":
            return client.class_prototypes().select("prototypes")
        features, labels = client.train_features()
        kept = without_outliers(features, labels)
        means, counts = F.class_means(features[kept], labels[kept], client.num_classes)
        return pf.class_rows(counts > 0, prototypes=means)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """SGD on L_OR (Eq. 5)."""
        config = server.config
        P, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        vectors, processor = trained.weights(server)
        weights = [vectors, *(processor.parameters() if processor is not None else ())]
        lr = config.server_lr or server.lr

        def step(P: Tensor, labels: Tensor) -> None:
            loss = L_OR(P, labels, trained.prototypes(server), config)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                torch._foreach_add_(weights, gradients, alpha=-lr)

        batches = trained.batches(server, len(labels), config.epochs)
        steps(server, step, batches, of=(P, labels), changes=weights)
        return trained.payload(server)


def L_OR(P: Tensor, labels: Tensor, P_hat: Tensor, config: FedORGP.Config) -> Tensor:
    """Return λ_s·(1 − s) + γ·d (Eq. 5).

    Args:
        P: P_k^c of clients, N×K.
        labels: Their classes, [N].
        P_hat: P̂, C×K.
        config: With λ_s, γ and ``weights``.
    """
    rows, C, labels = max(len(P), 1), len(P_hat), labels.long().unsqueeze(1)
    cosines = normalize(P, dim=1) @ normalize(P_hat, dim=1).T  # ⟨P_k^c, P̂^c'⟩, N×C
    apart = 1 - cosines.gather(1, labels).squeeze(1)  # N, the terms of 1 − s (Eq. 3)
    others = cosines.abs().scatter(1, labels, 0.0)  # N×C, the terms of d (Eq. 4)
    if config.weights == "adaptive":
        apart = apart * (1 + _adaptive(others.sum(1) / max(C - 1, 1)))
        others = others * (1 + _adaptive(others))
    return (
        config.lambda_s * apart.sum() / rows  # λ_s·(1 − s)
        + config.gamma * others.sum() / (rows * max(C - 1, 1))  # γ·d
    )


def _adaptive(cosines: Tensor) -> Tensor:
    """Return the share by which the published code raises a term, σ((a − 0.3)/0.5)."""
    return torch.sigmoid((cosines - THRESHOLD) / TEMPERATURE)


def without_outliers(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mask of the samples that ``outliers=drop`` keeps, [N] bool.

    As the published code does since 2025-07-10 (commit 2ec9edf).

    A sample's score is α·a + (1 − α)·b: a falls linearly with its distance to the mean of its
    class from 1 to 0, b rises with its cosine with that mean, both over the samples of the class. α
    is 0.5 times a factor of how the coefficients of variation of distance and cosine compare.
    Samples more than 1.5 quartile distances outside the quartiles of the score are left out, but
    never more than half of a class, and none of a class with fewer than three samples.

    Args:
        features: [N, K].
        labels: [N] integers.
    """
    kept = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().squeeze(1)
        if len(rows) > 2:
            kept[rows] = _inliers(features[rows])
    return kept


def _inliers(rows: Tensor) -> Tensor:
    """The kept samples of one class, [n] bool; rows [n, K]."""
    centre = rows.mean(0)
    distances = (rows - centre).norm(dim=1)
    cosines = cosine_similarity(rows, centre.unsqueeze(0))
    ratio = _variation(distances) / _variation(cosines)
    alpha = (0.5 * (1 - 0.3 * torch.tanh(0.5 * (ratio - 1)))).clamp(0.1, 0.9)
    scores = alpha * (1 - _scaled(distances)) + (1 - alpha) * _scaled(cosines)
    low, high = torch.quantile(scores, scores.new_tensor([0.25, 0.75]))
    reach = 1.5 * (high - low)
    kept: Tensor = (scores >= low - reach) & (scores <= high + reach)
    half = len(rows) // 2
    if kept.sum() < half:
        kept = torch.zeros_like(kept).index_fill(0, scores.topk(half).indices, True)
    return kept


def _variation(values: Tensor) -> Tensor:
    """The coefficient of variation."""
    share: Tensor = values.std().clamp_min(1e-8) / values.mean().abs().clamp_min(1e-8)
    return share


def _scaled(values: Tensor) -> Tensor:
    """The values from 0 to 1."""
    low, high = torch.aminmax(values)
    return (values - low) / (high - low + 1e-8)

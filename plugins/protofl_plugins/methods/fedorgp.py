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
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.engines.server_steps import steps
from protofl_plugins.shared import trained_prototypes as trained
from protofl_plugins.shared.prototypes import (
    MEANS,
    global_prototypes,
    guides,
    sent_rows,
    sent_without_counts,
)


class FedORGP:
    """Global prototypes are trained on the server to be orthogonal (Guo et al., 2025)."""

    class Config(trained.TrainedConfig):
        """Options, with the paper's symbols; shared: server_lr, processor, send_initial."""

        official = {"drop_last": True, "same_init": True, "shuffle": False}

        lambda_c: float = pf.Field(100.0, ge=0, description="λ_c, weight of align (Eq. 8)")
        lambda_s: float = pf.Field(1.0, ge=0, description="λ_s, weight of 1 − s (Eq. 5)")
        gamma: float = pf.Field(10.0, ge=0, description="γ, weight of d (Eq. 5)")
        epochs: int = pf.Field(1, ge=0, description="training epochs on the server")
        server_batch_size: int | None = pf.Field(
            32, ge=1, description="|B_p|, prototypes in a mini-batch. None: the clients'"
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

    upload_payload = staticmethod(sent_without_counts)  # P_k^c (Eq. 2)

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
        config: With λ_s and γ.
    """
    rows, C, labels = max(len(P), 1), len(P_hat), labels.long().unsqueeze(1)
    cosines = normalize(P, dim=1) @ normalize(P_hat, dim=1).T  # ⟨P_k^c, P̂^c'⟩, N×C
    apart = 1 - cosines.gather(1, labels).squeeze(1)  # N, the terms of 1 − s (Eq. 3)
    others = cosines.abs().scatter(1, labels, 0.0)  # N×C, the terms of d (Eq. 4)
    return (
        config.lambda_s * apart.sum() / rows  # λ_s·(1 − s)
        + config.gamma * others.sum() / (rows * max(C - 1, 1))  # γ·d
    )

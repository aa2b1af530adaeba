"""FedTGP: global prototypes are trained on the server, with an adaptive margin.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024.

    P_i^c      client i's prototype of class c                                       (Eq. 2)
    P̂^c       = F(e^c; θ_F): a trainable vector, processed by F = FC–ReLU–FC         (Fig. 3)
    δ(t)       = min(max_{c≠c'} φ(Q^c, Q^c'), τ), Q^c the mean of the P_i^c            (Eq. 9)
    L_P        Σ −log( e^−(φ(P_i^c, P̂^c)+δ) / (e^−(φ(P_i^c, P̂^c)+δ) + Σ_c' e^−φ(P_i^c, P̂^c')) )
                                                                                    (Eq. 10)
    L_i        E ℓ(h_i(f_i(x)), y) + λ·E_{c ~ C_i} φ(P_i^c, P̂^c)                     (Eq. 11)

Eq. 5 and 10 are minimised as published: by SGD on mini-batches of client prototypes, with the
clients' learning rate and batch size (unless the server has its own), and the mean over the
mini-batch in place of the sums.

No counts are sent. Inference: the class of the nearest of all C global prototypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import protofl as pf
from protofl import functional as F
from protofl_plugins.engines.server_steps import steps
from protofl_plugins.shared import trained_prototypes as trained
from protofl_plugins.shared.prototypes import (
    MEANS,
    WHEN_ONLINE,
    GuideConfig,
    collect_online,
    default_weight,
    global_prototypes,
    guided_loss,
    guides_of_before,
    nearest_prototype,
    sent_rows,
    sent_without_counts,
)


class FedTGP:
    """Global prototypes are trained on the server with an adaptive margin (Zhang et al., 2024)."""

    class Config(trained.TrainedConfig, GuideConfig):
        """Options, with the paper's symbols.

        Shared: lambda, distance, align, server_lr, server_batch_size, processor, send_initial.
        """

        official = {"drop_last": True, "same_init": True}
        deviations = {
            **trained.TrainedConfig.deviations,
            **GuideConfig.deviations,
            "collect": pf.Deviation(
                "Eq. 2, Alg. 1",
                "eval",
                "before",
                "the code reads its last saved model, which is that of before the training",
            ),
            "margin": pf.Deviation(
                "Eq. 9", "pair", "nearest", "the code takes each class's distance to the nearest"
            ),
        }
        collect: Literal["eval", "before", "online"] = pf.Field(
            None,
            description="take prototypes in an evaluation pass after training or before it, or "
            "during training",
        )
        tau: float = pf.Field(100.0, gt=0, description="τ, the largest margin (Eq. 9)")
        S: int = pf.Field(100, ge=0, description="S, training epochs on the server; 0 trains none")
        margin: Literal["pair", "nearest", "fixed", "none"] = pf.Field(
            None,
            description="δ: over all pairs (Eq. 9), to the nearest class, the fixed value delta "
            "(FM, Eq. 7), or none (SCL, Eq. 6)",
        )
        delta: float = pf.Field(1.0, gt=0, description="δ of margin=fixed (Eq. 7); value ours")

    tasks = ("classification", "multilabel")
    check_options = {"S": 5}  # server epochs, of which a hundred are the default
    asynchronous = True
    terms = {
        "ce": "cross-entropy, the first part of Eq. 11",
        "align": "λ·E_c φ(P_i^c, P̂^c), the second part of Eq. 11",
    }
    uploads = MEANS
    downloads = {"prototypes": "P̂^c of all classes, also of those that the client lacks"}
    ablations = {
        "SCL (Table 6)": "--set margin=none",
        "FM (Table 6)": "--set margin=fixed --set delta=1",
        "w/o F (Table 6)": "--set processor=false",
    }

    resolve = staticmethod(default_weight)  # λ
    setup_server = staticmethod(trained.set_up)
    download_payload = staticmethod(global_prototypes)  # P̂
    before_training = staticmethod(guides_of_before)
    local_loss = staticmethod(guided_loss)  # Eq. 11: E ℓ + λ·E_c φ(P_i^c, P̂^c)
    after_batch = staticmethod(collect_online)  # P_i^c (Eq. 2), if they are taken during training
    after_batch_if = WHEN_ONLINE
    upload_payload = staticmethod(sent_without_counts)  # P_i^c (Eq. 2)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """δ(t) by Eq. 9, then P̂ by Eq. 10 (Alg. 1, lines 8 and 9)."""
        config = server.config
        delta = adaptive_margin(server, uploads)  # Eq. 9
        P, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        batches = trained.batches(server, len(labels), config.S)
        minimise_L_P(
            server,
            *trained.weights(server),
            P,
            labels,
            delta,
            batches,
            config.server_lr or server.lr,
        )
        return trained.payload(server)

    inference = staticmethod(nearest_prototype)  # the nearest P̂^c; the head, before there are any


# --- the server's equations -----------------------------------------------------------------------


def adaptive_margin(server: pf.Server[FedTGP.Config], uploads: pf.Uploads) -> Tensor | float:
    """Return δ(t), Eq. 9: of the cluster centres Q^c, unweighted over clients."""
    config = server.config
    if config.margin in ("none", "fixed"):
        return config.delta if config.margin == "fixed" else 0.0
    P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
    Q, known = F.aggregate_prototypes(P, present, "uniform")
    largest = F.pair_margin if config.margin == "pair" else F.nearest_margin
    return largest(Q, known).clamp(max=config.tau)


@torch.no_grad()
def minimise_L_P(
    server: pf.Server[Any],
    e: Tensor,
    processor: nn.Module | None,
    P: Tensor,
    labels: Tensor,
    delta: Tensor | float,
    batches: Sequence[Tensor],
    lr: float,
) -> None:
    """Train e and F by SGD on L_P (`protofl.functional.margin_contrastive_loss`), in place.

    The gradient is written out in `_step`: a server's epochs are thousands of steps on a handful of
    vectors, in which autograd and the update of weights cost several times the arithmetic.

    Args:
        server: The server.
        e: e^c, C×K.
        processor: F = FC–ReLU–FC, or None where P̂ = e.
        P: P_i^c of all clients, N×K.
        labels: Their classes, [N].
        delta: δ.
        batches: The rows of each mini-batch, one batch after the other.
        lr: Learning rate.
    """
    if not batches:
        return
    # Distances by a product need float64, see `protofl.functional`.
    dtype = torch.float64 if F.has_float64(e.device) else torch.float32
    wide = P.to(dtype)
    norms = wide.square().sum(1, keepdim=True)
    is_label = one_hot(labels.long(), len(e)).to(dtype)
    layers = [] if processor is None else [m for m in processor if isinstance(m, nn.Linear)]  # type: ignore[attr-defined]
    weights = [e, *(w for layer in layers for w in layer.parameters())]

    def step(q: Tensor, norms: Tensor, is_label: Tensor, shift: Tensor) -> None:
        _step(e, layers, q, norms, is_label, shift, lr)

    tables = wide, norms, is_label, is_label * delta
    steps(server, step, batches, of=tables, changes=weights, together=True)


def _step(
    e: Tensor,
    layers: list[nn.Linear],
    q: Tensor,
    norms: Tensor,
    is_label: Tensor,
    shift: Tensor,
    lr: float,
) -> None:
    """Do a step of SGD on a mini-batch: q [B, K] with ‖q‖² [B, 1], [c = y] and δ·[c = y] [B, C].

    With P̂ = F(e), d_nc = ‖q_n − P̂_c‖ and y_n the class of row n, the loss of the mini-batch is

        L_P = 1/N Σ_n −log( e^−(d_ny+δ) / (e^−(d_ny+δ) + Σ_{c≠y} e^−d_nc) )        (Eq. 10)
            = 1/N Σ_n −log p_ny,  p_n = softmax_c(−(d_nc + [c = y_n]·δ))

    Its gradient is written out below:

        ∂L_P/∂d_nc = ([c = y_n] − p_nc)/N        ∂d_nc/∂P̂_c = (P̂_c − q_n)/d_nc

    and for F = FC–ReLU–FC the usual rules of the chain follow. A step is some twenty operations,
    and each weight matrix is updated by the product that its gradient is, without storing it.
    """
    P = e
    if layers:
        first, last = layers
        H = torch.addmm(first.bias, e, first.weight.T).relu_()
        P = torch.addmm(last.bias, H, last.weight.T)
    wide = P.to(q.dtype)
    sums = norms + wide.square().sum(1)
    squared = torch.addmm(sums, q, wide.T, alpha=-2.0)
    # Where a prototype and a row coincide the distance and its gradient are 0.
    coincide = squared <= 32 * torch.finfo(q.dtype).eps * sums
    distance = squared.masked_fill_(coincide, torch.inf).sqrt_()
    scores = distance.masked_fill(coincide, 0.0).add_(shift).neg_()
    A = (is_label - scores.softmax(1)).div_(len(q)).div_(distance)
    dP = (wide * A.sum(0).unsqueeze(1)).addmm_(A.T, q, alpha=-1.0).to(P.dtype)
    if not layers:
        e.add_(dP, alpha=-lr)
        return
    dH = (dP @ last.weight).mul_(H > 0)
    de = dH @ first.weight
    for layer, gradient, layer_input in ((last, dP, H), (first, dH, e)):
        layer.weight.addmm_(gradient.T, layer_input, alpha=-lr)
        layer.bias.add_(gradient.sum(0), alpha=-lr)
    e.add_(de, alpha=-lr)

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

from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins import trained_prototypes as trained
from protofl_plugins.prototype_methods import (
    CollectsBefore,
    Guided,
    GuidedConfig,
    guide,
    sent_rows,
)


class FedTGP(trained.Trained, CollectsBefore, Guided):
    """Global prototypes are trained on the server with an adaptive margin (Zhang et al., 2024)."""

    class Config(trained.Config, GuidedConfig):
        """Options, with the paper's symbols."""

        deviations = (
            GuidedConfig.deviations
            | trained.Config.deviations
            | {
                "collect": pf.Deviation(
                    "Eq. 2, Alg. 1",
                    "eval",
                    "before",
                    "the code reads its last saved model, which is that of before the training",
                ),
                "margin": pf.Deviation(
                    "Eq. 9",
                    "pair",
                    "nearest",
                    "the code takes each class's distance to the nearest",
                ),
            }
        )
        collect: Literal["eval", "before", "online"] = pf.Field(  # type: ignore[assignment]
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

    check_options = {"S": 5}  # server epochs, of which a hundred are the default
    terms = {
        "ce": "cross-entropy, the first part of Eq. 11",
        "align": "λ·E_c φ(P_i^c, P̂^c), the second part of Eq. 11",
    }
    downloads = {"prototypes": "P̂^c of all classes, also of those that the client lacks"}
    ablations = {
        "SCL (Table 6)": "--set margin=none",
        "FM (Table 6)": "--set margin=fixed --set delta=1",
        "w/o F (Table 6)": "--set processor=false",
    }

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """Eq. 11."""
        terms = {"ce": cross_entropy(output.logits, batch.y)}
        if given:
            terms["align"] = guide(client, batch, output, **given)  # λ·E_c φ(P_i^c, P̂^c)
        return terms

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """δ(t) by Eq. 9, then P̂ by Eq. 10 (Alg. 1, lines 8 and 9)."""
        vectors, processor = trained.weights(server)
        anchored, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        delta, config = self._margin(server, uploads), server.config  # Eq. 9
        batches = trained.batches(server, len(labels), config.S)
        # Eq. 10, whose gradient is computed in the function.
        F.train_prototypes(
            vectors, processor, anchored, labels, delta, batches, config.server_lr or server.lr
        )
        return trained.payload(server)

    @staticmethod
    def _margin(server: pf.Server[Config], uploads: pf.Uploads) -> Tensor | float:
        """δ(t), Eq. 9: of the cluster centres Q^c, unweighted over clients."""
        config = server.config
        if config.margin in ("none", "fixed"):
            return config.delta if config.margin == "fixed" else 0.0
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        Q, known = F.aggregate_prototypes(P, present, "uniform")
        margin = F.pair_margin if config.margin == "pair" else F.nearest_margin
        return margin(Q, known).clamp(max=config.tau)

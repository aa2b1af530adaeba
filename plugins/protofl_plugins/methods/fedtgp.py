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

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.prototype_methods import (
    Guided,
    GuidedConfig,
    guide,
    sent_rows,
)


class FedTGP(Guided):
    """Global prototypes are trained on the server with an adaptive margin (Zhang et al., 2024)."""

    class Config(GuidedConfig):
        """Options, with the paper's symbols."""

        deviations = GuidedConfig.deviations | {
            "collect": pf.Deviation(
                "Eq. 2, Alg. 1",
                "eval",
                "before",
                "the code reads its last saved model, which is that of before the training",
            ),
            "margin": pf.Deviation(
                "Eq. 9", "pair", "nearest", "the code takes each class's distance to the nearest"
            ),
            "send_initial": pf.Deviation(
                "Alg. 1, line 3", True, False, "the code sends nothing down in round 0"
            ),
        }
        collect: Literal["eval", "before", "online"] = pf.Field(  # type: ignore[assignment]
            None,
            description="take prototypes in an evaluation pass after training or before it, or "
            "during training",
        )
        tau: float = pf.Field(100.0, gt=0, description="τ, the largest margin (Eq. 9)")
        S: int = pf.Field(100, ge=0, description="S, training epochs on the server; 0 trains none")
        server_lr: float | None = pf.Field(
            None, gt=0, description="learning rate of the server's SGD. None: the clients'"
        )
        server_batch_size: int | None = pf.Field(
            None, ge=1, description="prototypes in a mini-batch of the server. None: the clients'"
        )
        margin: Literal["pair", "nearest", "fixed", "none"] = pf.Field(
            None,
            description="δ: over all pairs (Eq. 9), to the nearest class, the fixed value delta "
            "(FM, Eq. 7), or none (SCL, Eq. 6)",
        )
        delta: float = pf.Field(1.0, gt=0, description="δ of margin=fixed (Eq. 7); value ours")
        processor: bool = pf.Field(True, description="F; false trains the vectors alone (w/o F)")
        send_initial: bool = pf.Field(None, description="send P̂ down in round 0 already")

    check_options = {"S": 5}  # server epochs, of which a hundred are the default
    terms = {
        "ce": "cross-entropy, the first part of Eq. 11",
        "align": "λ·E_c φ(P_i^c, P̂^c), the second part of Eq. 11",
    }
    downloads = {"prototypes": "P̂^c of all classes, also of those that the client lacks"}
    ablations = {
        "SCL (Table 6)": "--set margin=none",
        "FM (Table 6)": "--set margin=fixed --set delta=…",
        "w/o F (Table 6)": "--set processor=false",
    }

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Trainable vectors from N(0, 1) and F, and their first prototypes."""
        K = server.feature_dim
        vectors = nn.Embedding(server.num_classes, K).to(server.device)
        server.modules["vectors"] = vectors
        if server.config.processor:
            processor = nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K))
            server.modules["F"] = processor.to(server.device)
        return self._payload(server) if server.config.send_initial else pf.Payload()

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """The global prototypes as a table C×K; Eq. 2 before training, where asked for."""
        if client.config.collect == "before":
            client.scratch["prototypes"] = super().upload_payload(client)
        return super().before_training(client)

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
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """P_i^c (Eq. 2), without counts."""
        taken: pf.Payload | None = client.scratch.get("prototypes")
        return super().upload_payload(client) if taken is None else taken

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """δ(t) by Eq. 9, then P̂ by Eq. 10 (Alg. 1, lines 8 and 9)."""
        vectors, processor = self._weights(server)
        anchored, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        delta, config = self._margin(server, uploads), server.config  # Eq. 9
        size, lr = config.server_batch_size or server.batch_size, config.server_lr or server.lr
        generator, batches = server.generator("shuffle"), list[Tensor]()
        for _ in server.epochs(config.S):
            order = torch.randperm(len(labels), generator=generator)
            batches += torch.split(order, size)
        # Eq. 10, whose gradient is computed in the function.
        F.train_prototypes(vectors, processor, anchored, labels, delta, batches, lr)
        return self._payload(server)

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

    @staticmethod
    def _weights(server: pf.Server) -> tuple[Tensor, nn.Module | None]:
        """e, C×K, and F."""
        return cast(Tensor, server.modules["vectors"].weight), server.modules.get("F")

    def _payload(self, server: pf.Server) -> pf.Payload:
        """P̂ = F(e; θ_F) of all classes."""
        vectors, processor = self._weights(server)
        prototypes = vectors if processor is None else processor(vectors)
        every = torch.ones(server.num_classes, dtype=torch.bool, device=server.device)
        return pf.class_rows(every, prototypes=prototypes.detach())

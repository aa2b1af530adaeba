"""FedPKD: clients and a server model teach each other by logits and prototypes.

Lyu et al., "A Prototype-Based Knowledge Distillation Framework for Heterogeneous Federated
Learning" (ICDCS 2023), Algorithms 1 and 2.

    P_c^j   client c's prototype of class j: mean feature of its samples           (Eq. 5)
    S(x)    = Σ_c β_c(x)·M_c(x) on public samples,  β_c = Var(M_c) / Σ_k Var(M_k)  (Eq. 6, 7)
    P^j     = Σ_c |D_c^j| P_c^j / Σ_c |D_c^j|                                      (Eq. 8)
    D̆       of the samples with ỹ = argmax S(x) = j, the share θ that is nearest to P^j by
            d(x) = ‖R_G(x) − P^ỹ‖, before the server's training             (Eq. 9, 10, Alg. 1)
    server  δ·(KL(S, M_G) + CE(M_G, ỹ)) + (1−δ)·MSE(R_G(x), P^ỹ) on D̆              (Eq. 11–13)
    public  γ·KL(M_c, M_G) + (1−γ)·CE(M_c, argmax M_G) on D̆                       (Eq. 14, 15)
    private CE, and from the second round on + ε·MSE(R_c(x), P^y)                  (Eq. 4, 16)

The KD-based method that the paper starts from (Fig. 1 to 3) distils 1/M·Σ_c M_c(x) by KL alone
(Eq. 3, see ``ablations``).

The paper leaves open, and here: KL has the teacher's softmax, T = 1, mean over the batch; ⌈θn⌉
samples are kept; a pseudo-class without a prototype is neither filtered nor pulled. Eq. 8 as
printed divides by the number of clients once more (``aggregate=eq3``). With ρ < 1 a class may be
absent from a round; it keeps its last prototype (``absent``). Inference is by the head.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import public_data
from protofl_plugins.shared.prototypes import (
    Absent,
    Average,
    class_prototypes,
    mean_prototypes,
    received_prototypes,
    with_absent,
)


class FedPKD:
    """Clients and a server model teach each other by logits and prototypes (Lyu et al., 2023)."""

    class Config(public_data.PublicPhaseConfig, public_data.ServerTrainingConfig):
        """Options, with the paper's symbols; shared: epochs, server_epochs, public_epochs."""

        paper_epochs = {
            "local_epochs": 15,
            "public_epochs": 10,
            "server_epochs": 40,
        }
        theta: float = pf.Field(
            0.7, gt=0, le=1, description="θ, the share of a pseudo-class kept; 1 filters nothing"
        )
        weights: Literal["variance", "uniform"] = pf.Field(
            "variance", description="β of S (Eq. 7), or 1/M (Eq. 3)"
        )
        ce: bool = pf.Field(True, description="CE(M_G, ỹ) of Eq. 11; false leaves KL (Eq. 3)")
        delta: float = pf.Field(
            0.5,
            ge=0,
            le=1,
            description="δ; 1 trains the server without prototypes, 0 by them alone",
        )
        gamma: float = pf.Field(
            0.5, ge=0, le=1, description="γ; 1 leaves KL in the public phase, 0 pseudo-labels"
        )
        epsilon: float = pf.Field(0.5, ge=0, description="ε; 0 leaves prototypes out on clients")
        aggregate: Average = pf.Field(
            "weighted", description="mean over clients by counts, plain, or as Eq. 8 is printed"
        )
        absent: Absent = pf.Field(
            "keep", description="P^j of a class that no client of the round has: the last, or none"
        )
        server_model: str | None = pf.Field(
            None, description="the server's architecture M_G. None: the group's (resnet56)"
        )
        server_lr: float = pf.Field(1e-3, gt=0, description="η of the server's Adam")

    needs_public = True
    terms = {
        "ce": "cross-entropy on private samples, Eq. 4 and 16",
        "align": "ε·MSE(R(x), P^y), Eq. 16",
        "public_kl": "γ·KL to the server's logits on D̆, Eq. 15",
        "public_ce": "(1−γ)·CE to the server's pseudo-labels on D̆, Eq. 15",
    }
    uploads = {
        "public_logits": "M_c on all public samples: what the model takes them for",
        "prototypes": "P_c^j of the client's classes: mean features (the paper: irreversible)",
        "classes": "which classes the client has",
        "counts": "|D_c^j|, the class distribution (not with aggregate=uniform)",
    }
    downloads = {
        "public_logits": "M_G on the kept public samples D̆",
        "public_index": "which public samples were kept",
        "prototypes": "P^j of the classes that anybody has sent",
    }
    ablations = {
        "w/o Pro (Fig. 8)": "--set delta=1",
        "w/o D.F. (Fig. 8)": "--set theta=1",
        "KD-based (Fig. 1 to 3, Eq. 3)": (
            "--set weights=uniform --set ce=false --set theta=1 --set delta=1 --set gamma=1 "
            "--set epsilon=0"
        ),
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Take Adam, η = 0.001, batches of 32 (section V.A), also with ``epochs=one``."""
        return public_data.PAPER_RUN | public_data.paper_defaults(config)

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require public samples, and a server model that the group can build."""
        reasons = public_data.without_public(run)
        return reasons + public_data.without_server_model(run, config.server_model)

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """ClientPriTrain and, after the server's step, ClientPubTrain on D̆ (Alg. 2)."""
        private = pf.Phase(terms=("ce", "align"))
        terms = ("public_kl", "public_ce")
        return [private, public_data.public_phase("public", config, terms=terms)]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build M_G, which stays with the server."""
        config = server.config
        server.modules["model"] = server.build(config.server_model or server.architecture)
        return pf.Payload()

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send M_G on D̆, and P (Alg. 2, line 10)."""
        return server.global_state.select("public_logits", "public_index", "prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss M_G on D̆, and P as a table C×K with the mask of known classes."""
        constants = public_data.received_scores(client, "public_logits")
        if "prototypes" not in client.received:
            return constants
        P, known = received_prototypes(client)
        return {**constants, "P": P, "known": known}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Eq. 15 in the public phase; Eq. 4, later Eq. 16, in the private one."""
        config = client.config
        if batch.phase == "public":
            M_G = constants["scores"][batch.index]
            kl = F.kl_divergence(output.logits, M_G)
            ce = cross_entropy(output.logits, M_G.argmax(1))  # pseudo-labels of Eq. 14
            return {"public_kl": config.gamma * kl, "public_ce": (1 - config.gamma) * ce}  # Eq. 15
        terms = {"ce": cross_entropy(output.logits, batch.y)}  # Eq. 4
        if "P" in constants:
            P, known = constants["P"], constants["known"]
            mse = F.prototype_alignment(output.features, batch.y, P, known, "mse")
            terms["align"] = config.epsilon * mse  # Eq. 16
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send M_c on all public samples, and P_c (Alg. 2, line 4)."""
        payload = class_prototypes(client, client.config.aggregate)  # Eq. 5
        payload["public_logits"] = public_data.public_logits(client)
        return payload

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the prototypes: P (Eq. 8)."""
        P, known = _prototypes(server, uploads)
        return pf.class_rows(known, prototypes=P)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Make S (Eq. 6) and D̆ (Alg. 1), train M_G (Eq. 13), then take M_G on D̆."""
        config, model = server.config, public_data.server_model(server)
        delta: float = config.delta
        M = public_data.stacked(uploads, "public_logits")
        S = F.ensemble_logits(M, config.weights)  # Eq. 6 and 7
        P, known = _prototypes(server, uploads)  # Eq. 8
        R, _ = public_data.evaluated(model, server.public)
        near = filter_by_prototype(R, S.argmax(1), P, known, config.theta)  # Eq. 9 and 10
        kept = near.nonzero().squeeze(1)
        S = S[kept]

        def loss(
            features: Tensor, logits: Tensor, S: Tensor, y: Tensor, P: Tensor, known: Tensor
        ) -> Tensor:
            kd = F.kl_divergence(logits, S)  # Eq. 11
            if config.ce:
                kd = kd + cross_entropy(logits, y)
            pull = F.prototype_alignment(features, y, P, known, "mse")  # Eq. 12
            return delta * kd + (1 - delta) * pull  # Eq. 13

        epochs, lr = config.server_epochs, config.server_lr
        public_data.train_on_public(
            server,
            model,
            loss,
            of=(S, S.argmax(1)),
            given=(P, known),
            epochs=epochs,
            lr=lr,
            rows=kept,
        )
        _, M_G = public_data.evaluated(model, server.public, kept)
        return pf.Payload(public_logits=M_G, public_index=kept)

    global_models = staticmethod(public_data.server_models)


def _prototypes(server: pf.Server[FedPKD.Config], uploads: pf.Uploads) -> tuple[Tensor, Tensor]:
    """Return P (Eq. 8) as a table C×K, with those of absent classes, and the known ones, [C]."""
    P, known = mean_prototypes(server, uploads, server.config.aggregate)
    return with_absent(server, P, known, server.config.absent)


def filter_by_prototype(
    features: Tensor, pseudo_labels: Tensor, prototypes: Tensor, known: Tensor, keep: float
) -> Tensor:
    """Keep, of every pseudo-class, the samples nearest to its prototype: Alg. 1, Eq. 9 and 10.

    ⌈keep·n⌉ of a class's n samples are kept; of equally near ones those with the lower index. All
    are kept if the class has no prototype to measure by.

    Args:
        features: R_G(x), [N, K].
        pseudo_labels: ỹ, [N] integers in 0…C−1.
        prototypes: P, [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.
        keep: The fraction θ to keep, above 0 and at most 1.

    Returns:
        [N] bool, in the samples' order.
    """
    # The square orders the samples as the distance does.
    distances = (features - prototypes[pseudo_labels]).square().sum(1)

    # Two stable sorts line the samples up by class, then distance, then index.
    order = distances.argsort(stable=True)
    order = order[pseudo_labels[order].argsort(stable=True)]
    every = torch.ones_like(pseudo_labels)
    sizes = every.new_zeros(len(known)).index_add(0, pseudo_labels, every)
    starts = sizes.cumsum(0) - sizes
    ranks = torch.arange(len(order), device=order.device) - starts[pseudo_labels[order]]

    # 0.07 · 100 is 7.000000000000001 in floating point; its ceiling has to be 7.
    numbers = [max(1, math.ceil(keep * n - 1e-9)) for n in sizes.tolist()]
    quotas = torch.where(known, sizes.new_tensor(numbers), sizes)
    mask = torch.empty_like(pseudo_labels, dtype=torch.bool)
    mask[order] = ranks < quotas[pseudo_labels[order]]
    return mask

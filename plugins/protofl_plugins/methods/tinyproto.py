"""TinyProto: clients send a few numbers of each prototype, other ones for each class.

Lee and Choi, "Communication-Efficient Heterogeneous Federated Learning with Sparse Prototypes in
Resource-Constrained Environments", AAAI 2026 (arXiv 2507.04327). This is TinyProto-FP (Algorithm
1), which is built on FedProto; d, the paper's number of features, is K here.

    c_i,j   client i's prototype of class j: mean feature of its n_i,j samples       (Eq. 3)
    m_j     the mask of class j: s of the K features, the same ones in all rounds
    ĉ_i,j   the s numbers of c_i,j where m_j is 1, of which n_i,j·ĉ_i,j is sent      (Eq. 8, 10)
    ĉ_j     global prototype: 1/|N_j|·Σ_{i in N_j} n_i,j·ĉ_i,j                       (Eq. 10)
    c̃_j     ĉ_j at the places of m_j, and 0 elsewhere                                (Eq. 7)
    L_i     E ℓ(h_i(f_i(x)), y) + λ·E_j ρ(c_i,j, μ·c̃_j)                              (Eq. 5, 11)

Inference: the class of the nearest c_i,j, the client's own dense prototypes (Eq. 12); the head,
before there are any.

The loss is FedProto's, with μ·c̃ as global prototypes. So ρ is over all K features: a class is also
drawn to 0 outside of its mask. The paper has Σ_j and λ = 1, "following FedProto"; as in our
FedProto, E_j is the mean over the batch's classes, and λ = 0.1.

The paper draws masks at random, with the largest Hamming distance between classes, and sends them
once. Here every client draws them from the seed (`class_masks`), so that none are sent.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.prototypes import guide_weight, guided_loss, with_absent


class TinyProto:
    """Clients send s scaled numbers of each class prototype, not all K (Lee and Choi, 2026)."""

    class Config(pf.Config):
        """Options, with the paper's symbols."""

        lambda_: float | None = pf.Field(
            None,
            alias="lambda",
            ge=0,
            description="λ of align; 0 regresses to local training. None: 0.1 for distance=l2, "
            "10 for mse",
        )
        distance: Literal["l2", "mse"] = pf.Field(
            "l2", description="ρ: Euclidean distance, or squared distance / K"
        )
        align: Literal["class", "sample"] = pf.Field(
            "class", description="guide the batch's class means c_i,j, or every sample's feature"
        )
        s: int | None = pf.Field(
            None,
            ge=1,
            description="numbers of a prototype that are sent; K or more sends all. None: K/10, as "
            "50 of 500 in the paper",
        )
        scaling: bool = pf.Field(
            True,
            description="adaptive prototype scaling; false sends ĉ without n, and μ is 1",
        )
        mu: float | None = pf.Field(
            None,
            gt=0,
            description="μ, the scale of global prototypes; near 0 draws all features to 0. None: "
            "one over the mean n_i,j of the client's classes",
        )

    check_options = {"s": 4}  # a tenth of a small net's features is one number
    asynchronous = True
    terms = {
        "ce": "cross-entropy",
        "align": "λ·E_j ρ(c_i,j, μ·c̃_j), of the batch's classes",
    }
    uploads = {
        "scaled_prototypes": pf.Key(
            "[n, s]",
            "n_i,j·ĉ_i,j: s numbers of each class's mean feature, times its samples",
            by_class=True,
            reveals="which classes the client has, exactly, and roughly how many samples of each, "
            "by the size of its row; protofl leak does not attack it",
        ),
        "classes": "which classes the client has",
    }
    downloads = {
        "scaled_prototypes": pf.Key(
            "[n, s]", "ĉ_j of the classes that anybody has sent", by_class=True
        )
    }
    ablations = {
        "without sparsification (CPS)": "--set s=1000000",
        "without adaptive scaling (APS)": "--set scaling=false",
    }

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """Set s, which is at most K, and λ."""
        K = run.feature_dim
        s = min(config.s or max(1, round(K / 10)), K)
        return {"s": s, "lambda_": guide_weight(config.lambda_, config.distance)}

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Draw the masks of all classes, the same on all clients."""
        C, K = client.num_classes, client.feature_dim
        client.state["places"] = class_masks(
            C, K, client.config.s or K, client.shared_generator("masks")
        )

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """ĉ."""
        return server.global_state.select("scaled_prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """μ·c̃ as a table C×K, and the classes that have one (Eq. 7, 11)."""
        if "scaled_prototypes" not in client.received:
            return {}
        config, C = client.config, client.num_classes
        rows, known = client.received.table("scaled_prototypes", C, config.s)
        if config.scaling:
            counts = client.class_counts
            rows = (config.mu or int((counts > 0).sum()) / int(counts.sum())) * rows
        places = client.state["places"].to(rows.device)
        return {"P": rows.new_zeros(C, client.feature_dim).scatter(1, places, rows), "known": known}

    local_loss = staticmethod(guided_loss)  # E ℓ + λ·E_j ρ(c_i,j, μ·c̃_j) (Eq. 5, 11)

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Keep c_i,j (Eq. 3) for inference."""
        client.state["own"] = client.class_prototypes().table("prototypes", client.num_classes)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send n_i,j·ĉ_i,j (Eq. 8, 10)."""
        P, known = client.class_prototypes().table("prototypes", client.num_classes)
        rows = P.gather(1, client.state["places"].to(P.device))  # ĉ
        if client.config.scaling:
            rows = client.class_counts.to(rows).unsqueeze(1) * rows
        return pf.class_rows(known, scaled_prototypes=rows)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """ĉ (Eq. 10); a class that no client of the round has keeps its last one."""
        rows, sent = pf.stack_rows(uploads, "scaled_prototypes", server.num_classes)
        mean, known = F.aggregate_prototypes(rows, sent, "uniform")
        mean, known = with_absent(server, mean, known, "keep")
        return pf.class_rows(known, scaled_prototypes=mean)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return minus the distance to each c_i,j (Eq. 12), or the head's scores before any."""
        z = client.features(x)
        if "own" not in client.state:
            return client.head(z)
        P, known = (tensor.to(z.device) for tensor in client.state["own"])
        return -F.prototype_distance(z.float(), P).masked_fill(~known, torch.inf)


def class_masks(C: int, K: int, s: int, generator: torch.Generator) -> Tensor:
    """Return the places of s ones in each class's mask m_j, ascending, [C, s].

    Each class takes the s features that the fewest classes before it have, at random among equals.
    So no feature has two classes more than another one, and the sum of Hamming distances between
    all pairs of masks is the largest possible; masks are disjoint if C·s ≤ K.
    """
    used, places = torch.zeros(K), []
    for _ in range(C):
        least = (used + torch.rand(K, generator=generator)).argsort()[:s]
        used[least] += 1
        places.append(least.sort().values)
    return torch.stack(places)

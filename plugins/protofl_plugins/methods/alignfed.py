"""AlignFed: features are drawn to fixed points on the unit sphere, and clients share the head.

Zhu et al., "Aligning before Aggregating: Enabling Communication Efficient Cross-Domain Federated
Learning via Consistent Feature Extraction", IEEE Transactions on Mobile Computing 23(5), 2024; the
loss and its numbers are those of the code in github.com/XinghaoWu/FedTSP_CVPR26.

    v^c     a fixed point for each class c; all C are spread evenly on the unit sphere
    ℓ_v     −1/C·Σ_c mean over the batch's x of class c of log p^c(x)
    p^c(x)  exp cos(f_i(x), v^c) / Σ_{x'} exp cos(f_i(x'), v^c), x' over the batch
    L_i     E ℓ(h_i(f_i(x)), y) + λ_t·ℓ_v
    λ_t     λ_0·(λ_T/λ_0)^{t/T}, in round t = 0 … T−1
    h       Σ_i (n_i/n)·h_i over the round's clients

The code finds v by 100,000 steps that minimise Σ_i log Σ_j exp(v_i·v_j/τ). For K ≥ C − 1 the
minimum is a simplex equiangular tight frame. It has a closed form (FedKTL's, for K ≥ C), which we
take: every client draws the same one from the seed, and no points are sent.

The server builds h and sends it from the first round, as in `lg-fedavg`. Inference: the head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights

LAMBDA_T = 2.0
"""λ_T, which the weight tends to."""


class AlignFed:
    """Features are drawn to fixed points on the unit sphere; clients share the head (Zhu, 2024)."""

    class Config(weights.SharingConfig):
        """Options, with the paper's symbols; shared: aggregate."""

        lambda_0: float = pf.Field(
            20.0, gt=0, description="λ_0, weight of align in the first round"
        )

    asynchronous = "versions"
    terms = {"ce": "cross-entropy", "align": "λ_t·ℓ_v, to the fixed points"}
    uploads = {
        "head/*": "the classifier after local training; its bias hints at the class shares",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"head/*": "h, one head for all"}
    ablations = {"without fixed points": "--drop local_loss.align"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require heads of one shape, and room for the points."""
        C, K = run.num_classes, run.feature_dim
        if 2 <= C <= K:
            return weights.HEAD.requires(run, config)
        if C < 2:
            return ["it spreads the points of at least 2 classes, and the data have 1"]
        return [f"its {C} points need K ≥ {C}, and K is {K}; --feature-dim {C} or more works"]

    setup_server = weights.HEAD.setup_server

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """v, the same on all clients."""
        C, K = client.num_classes, client.feature_dim
        client.state["v"] = F.simplex_etf(C, K, client.shared_generator("v")).T.contiguous()

    download_payload = weights.HEAD.download_payload  # H
    receive = weights.HEAD.receive  # h_i ← h

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """v, and λ_t of this round."""
        config, progress = client.config, client.round / client.rounds  # t/T
        weight = config.lambda_0 * (LAMBDA_T / config.lambda_0) ** progress
        return {"v": client.state["v"].to(client.device), "weight": torch.tensor(weight)}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_i."""
        l_v = fixed_point_loss(output.features, batch.y, constants["v"])
        return {
            "ce": cross_entropy(output.logits, batch.y),
            "align": constants["weight"] * l_v,  # λ_t·ℓ_v
        }

    upload_payload = weights.HEAD.upload_payload
    server_aggregate = weights.HEAD.server_aggregate  # H ← Σ_i (n_i/n) · h_i


def fixed_point_loss(features: Tensor, labels: Tensor, v: Tensor) -> Tensor:
    """Return ℓ_v, a scalar; a class without samples adds 0.

    Args:
        features: f(x), B×K.
        labels: y, [B].
        v: C×K.
    """
    cosines = normalize(features.to(v.dtype), dim=1) @ normalize(v, dim=1).T
    log_p = log_softmax(cosines, 0).gather(1, labels.unsqueeze(1))  # over the batch
    means, _ = F.class_means(log_p, labels, len(v))
    return -means.mean()

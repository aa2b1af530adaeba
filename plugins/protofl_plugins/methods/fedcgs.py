"""FedCGS: the server computes a Gaussian head from sums of the clients' features, in one round.

Guan et al., "Capture Global Feature Statistics for One-Shot Federated Learning", AAAI 2025 (arXiv
2503.06962); the equations as in the published code.

    client    A_c^i = Σ_{y = c} f(x), N_c^i samples of class c, B^i = Σ f(x)·f(x)ᵀ
    server    A_c, N_c, B: sums over clients;  N = Σ_c N_c,  π_c = N_c/N,  μ = Σ_c A_c/N
    μ_c       A_c/N_c
    S         (B − N·μ·μᵀ)/(N − 1)
    score     μ_cᵀ·S⁻¹·f(x) − ½·μ_cᵀ·S⁻¹·μ_c + log π_c

S is the covariance of all features, about their global mean. Linear discriminant analysis has the
covariance within classes, (B − Σ_c N_c·μ_c·μ_cᵀ)/(N − C), which the same sums give:
``covariance=within``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import feature_statistics as statistics


class FedCGS:
    """A Gaussian head from sums of features, without training (Guan et al., 2025)."""

    class Config(statistics.StatisticsConfig):
        """Options, with the paper's symbols; shared: scope."""

        covariance: Literal["global", "within"] = pf.Field(
            "global", description="S about the global mean, or about the means of the classes"
        )
        gamma: float = pf.Field(
            0.0,
            ge=0,
            description="γ, added to the diagonal of S; 0: nothing; large: the share of a class "
            "alone decides",
        )

    uploads = {
        "feature_sums": statistics.FEATURE_SUMS,
        "counts": "N_c^i",
        "classes": "which classes the client has",
        "gram": statistics.GRAM,
    }
    upload_rules = statistics.UPLOAD_RULES | dict.fromkeys(("feature_sums", "counts"), "optional")
    downloads = statistics.LINEAR_HEAD  # W and b

    run_defaults = staticmethod(statistics.one_shot)
    phases = staticmethod(statistics.no_training)
    download_payload = staticmethod(statistics.head_of)  # W and b

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """A_c^i, N_c^i and B^i, once."""
        if "kept" in client.received:
            return pf.Payload()
        A, B, N = statistics.sums(client)
        sent = pf.Payload(pf.class_rows(N > 0, feature_sums=A, counts=N), gram=B)
        return statistics.wide(sent, client.device)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """W and b of all sums so far."""
        C, config = server.num_classes, server.config

        def read(upload: pf.Payload) -> Mapping[str, Tensor]:
            B = F.in_float64(upload["gram"])
            return {**statistics.sent_sums(upload, C), "B": B}

        def solve(A: Tensor, N: Tensor, B: Tensor) -> Mapping[str, Tensor]:
            W, b = gaussian_head(A, N, B, config.covariance, config.gamma)
            return {"discriminants": W, "offsets": b}

        return statistics.heads(server, uploads, read, solve)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Predict by W and b; by the own head, before there is one."""
        return statistics.linear_scores(client, x, "offsets")


def gaussian_head(
    A: Tensor, N: Tensor, B: Tensor, covariance: str = "global", gamma: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return W [C, K] and b [C] of the scores W·f(x) + b; b is −∞ for a class without samples.

    Args:
        A: The sums of each class's features, C×K.
        N: The number of each class's samples, [C].
        B: The second moments of all features, K×K.
        covariance: ``global`` or ``within``, see the module.
        gamma: γ.
    """
    mu_c, n = A / N.clamp(min=1).unsqueeze(1), N.sum()
    if covariance == "global":
        mu = A.sum(0) / n
        scatter, freedom = B - n * torch.outer(mu, mu), n - 1
    else:
        scatter, freedom = B - A.T @ mu_c, n - (N > 0).sum()
    S = scatter / freedom.clamp(min=1) + gamma * torch.eye(len(B)).to(B)
    W = mu_c @ statistics.inverse(S)
    return W, (N / n).log() - (W * mu_c).sum(1) / 2

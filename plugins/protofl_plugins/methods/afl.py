"""AFL: clients solve ridge regressions, whose aggregate is the regression on all samples.

He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models",
CVPR 2025 (arXiv 2405.16240).

    client    W_i = (G_i + γ·I)⁻¹·X_iᵀ·Y_i, G_i = X_iᵀ·X_i, of features X_i and one-hot labels Y_i
    AA law    W ← (C_u + C_v)⁻¹·(C_u·W_u + C_v·W_v), C ← C_u + C_v, from C_i = G_i + γ·I
    RI        W ← (C − M·γ·I)⁻¹·C·W, for M clients: without the clients' regularisation
    score     f(x)ᵀ·W, without a constant

The absolute aggregation law holds for two groups of clients u and v, and the paper merges one
client after the other. After all of them C·W = Σ_i C_i·W_i, so that law and RI are one solution:

    W = (Σ_i G_i + λ·I)⁻¹·Σ_i C_i·W_i,  where  Σ_i C_i·W_i = XᵀY of all samples

With λ = 0, as in the paper, it is least squares, of the smallest norm if features are dependent.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import feature_statistics as statistics


class AFL:
    """Ridge regressions of clients give that on all samples (He et al., 2025)."""

    class Config(statistics.StatisticsConfig):
        """Options, with the paper's symbols; shared: scope."""

        gamma: float = pf.Field(
            1.0,
            gt=0,
            description="γ of the clients' regressions, which the server removes: the result "
            "depends on it by rounding alone",
        )
        lambda_: float = pf.Field(
            0.0,
            ge=0,
            alias="lambda",
            description="λ, regularisation that stays; 0: none, as in the paper; large: the score "
            "of a class is proportional to f(x)ᵀ·Σ f of its samples",
        )

    uploads = {
        "ridge": pf.Key(
            "[n, K] float64",
            "W_i of the client's classes",
            by_class=True,
            reveals="with gram, the sum of each class's features: to whoever has the extractor, "
            "the sample itself if a class has one; which protofl leak does not measure",
        ),
        "classes": "which classes the client has",
        "gram": statistics.GRAM,
    }
    upload_rules = statistics.UPLOAD_RULES | {"ridge": "optional"}
    downloads = {"discriminants": statistics.DISCRIMINANTS, "kept": statistics.KEPT}

    run_defaults = staticmethod(statistics.one_shot)
    phases = staticmethod(statistics.no_training)
    download_payload = staticmethod(statistics.head_of)  # W

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """W_i and G_i, once."""
        if "kept" in client.received:
            return pf.Payload()
        A, G, N = statistics.sums(client)
        W = torch.linalg.solve(regularised(G, client.config.gamma), A.T).T
        return statistics.wide(pf.Payload(pf.class_rows(N > 0, ridge=W), gram=G), client.device)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """W of all clients so far: the AA law and RI."""
        config = server.config

        def read(upload: pf.Payload) -> Mapping[str, Tensor]:
            W, known = upload.table("ridge", server.num_classes)
            G = F.in_float64(upload["gram"])
            A = F.in_float64(W) @ regularised(G, config.gamma)  # C_i·W_i, which is X_iᵀ·Y_i
            return {"A": A, "G": G, "known": known.to(G.device)}

        def solve(A: Tensor, G: Tensor) -> Mapping[str, Tensor]:
            return {"discriminants": A @ statistics.inverse(regularised(G, config.lambda_))}

        return statistics.heads(server, uploads, read, solve)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Predict by W; by the own head, before there is one."""
        return statistics.linear_scores(client, x)


def regularised(G: Tensor, ridge: float) -> Tensor:
    """Return G + ridge·I, K×K."""
    return G + ridge * torch.eye(len(G)).to(G)

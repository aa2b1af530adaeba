"""GH-OFL: the server builds Gaussian heads from sums of the clients' features, in one round.

Turazza, Picone and Mamei, "The Gaussian-Head OFL Family: One-Shot Federated Learning from Client
Global Statistics", ICLR 2026 (arXiv 2602.01186); the equations as in the published code.

    client       A_c = Σ_{y = c} x and N_c, for features x, and the moments that the head needs:
    nb-diag        Q_c = Σ_{y = c} x∘x
    lda            B = Σ x·xᵀ
    other heads    S_c = Σ_{y = c} x·xᵀ
    server       sums over clients;  μ_c = A_c/N_c,  π_c = N_c/N
    Σ            (B − Σ_c N_c·μ_c·μ_cᵀ)/(N − C),  B = Σ_c S_c
    Σ_c          (S_c − N_c·μ_c·μ_cᵀ)/(N_c − 1);  Σ for a class of one sample
    shrink_α     S ↦ (1 − α)·S + α·(tr S/K)·I + ε·I
    nb-diag      log π_c − ½ Σ_k (x_k − μ_ck)²/v_ck − ½ Σ_k log v_ck,
                 v_c = max(Q_c/N_c − μ_c∘μ_c, ε)
    lda          log π_c − ½ (x − μ_c)ᵀ·Σ⁻¹·(x − μ_c), with shrink_α(Σ)
    qda          log π_c − ½ (x − μ_c)ᵀ·Σ_c⁻¹·(x − μ_c) − ½ log |Σ_c|, with shrink_α(Σ_c)

The other two heads are trained on synthetic samples in the Fisher subspace V, K×k, of the largest
eigenvectors U of Σ^{-½}·S_B·Σ^{-½}, S_B = Σ_c π_c·(μ_c − μ)(μ_c − μ)ᵀ, with shrink_α(Σ):

    V            Σ^{-½}·U, so that Vᵀ·Σ·V = I
    z            N(Vᵀ·μ_c, τ²·Vᵀ·shrink_β(Σ_c)·V), equally many of each class
    fisher-mix   W·z + b, by cross-entropy
    proto-hyper  g(z) + R·z, g the scores of lda in V, R of rank r;
                 a·T²·KL(softmax(g/T) ‖ softmax((g + R·z)/T)) + (1 − a)·cross-entropy

Scores of a head are W·x + b, for nb-diag and qda less ½ xᵀ·P_c·x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import feature_statistics as statistics

EPSILON = 1e-6
"""ε, the smallest variance."""

Head = Literal["nb-diag", "lda", "qda", "fisher-mix", "proto-hyper"]


class GHOFL:
    """Gaussian heads from counts and moments of features (Turazza et al., 2026)."""

    class Config(statistics.StatisticsConfig):
        """Options, as the published code names them; shared: scope."""

        head: Head = pf.Field(
            "lda",
            description="covariances of the head: diagonal for each class, one for all, or full "
            "for each class; or a head trained on samples of the Gaussians",
        )
        lda_shrink: float = pf.Field(
            0.05,
            ge=0,
            le=1,
            description="α of Σ; 0: as it is; 1: a sphere, so that the nearest mean decides",
        )
        qda_shrink: float = pf.Field(
            0.1, ge=0, le=1, description="α of Σ_c of qda; 0: as they are; 1: spheres"
        )
        fisher_energy: float = pf.Field(
            0.995,
            gt=0,
            le=1,
            description="part of the variance between classes that the Fisher subspace keeps",
        )
        fisher_max_dim: int = pf.Field(128, ge=1, description="largest k of the Fisher subspace")
        syn_ns_per_class: int = pf.Field(4000, ge=1, description="synthetic samples of each class")
        syn_tau: float = pf.Field(
            0.9, gt=0, description="τ, factor of the deviation of synthetic samples"
        )
        syn_shrink: float = pf.Field(0.05, ge=0, le=1, description="β of synthetic samples")
        epochs: int = pf.Field(
            40, ge=0, description="passes over synthetic samples; 0 leaves the head untrained"
        )
        ph_rank: int = pf.Field(128, ge=1, description="r of proto-hyper, k at most")
        kd_alpha: float = pf.Field(
            0.4, ge=0, le=1, description="a of proto-hyper; 0: labels alone; 1: the teacher alone"
        )
        kd_T: float = pf.Field(4.0, gt=0, description="T, temperature of proto-hyper")

    uploads = {
        "feature_sums": statistics.FEATURE_SUMS,
        "counts": "N_c of the client",
        "classes": "which classes the client has",
        "feature_squares": pf.Key(
            "[n, K] float64",
            "Q_c of the client's classes, for nb-diag",
            by_class=True,
            reveals="how each feature of a class varies on the client; of a class with one sample, "
            "the sample up to the sign of each feature",
        ),
        "gram": statistics.GRAM,
        "class_grams": pf.Key(
            "[n, K, K] float64",
            "S_c of the client's classes, for qda, fisher-mix and proto-hyper",
            by_class=True,
            reveals="how the features of each class vary together; of a class with fewer samples "
            "than features, the space that they span",
        ),
    }
    upload_rules = dict.fromkeys(uploads, "optional")  # a client sends them once
    downloads = {
        **statistics.LINEAR_HEAD,
        "inverse_variances": pf.Key("[n, K] float64", "1/v_c, of nb-diag", by_class=True),
        "precisions": pf.Key("[n, K, K] float64", "Σ_c⁻¹, of qda", by_class=True),
    }
    download_rules = dict.fromkeys(("inverse_variances", "precisions"), "optional")

    run_defaults = staticmethod(statistics.one_shot)
    phases = staticmethod(statistics.no_training)
    download_payload = staticmethod(statistics.head_of)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """A_c, N_c, and the second moments that the head needs, once."""
        if "kept" in client.received:
            return pf.Payload()
        A, B, N = statistics.sums(client)
        sums, moments = {"feature_sums": A, "counts": N}, MOMENTS[client.config.head]
        if moments == "gram":
            return statistics.wide(pf.Payload(pf.class_rows(N > 0, **sums), gram=B), client.device)
        sums[moments] = class_moments(client, moments)
        return statistics.wide(pf.class_rows(N > 0, **sums), client.device)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The head of all sums so far."""
        C, config = server.num_classes, server.config
        moments = MOMENTS[config.head]

        def read(upload: pf.Payload) -> Mapping[str, Tensor]:
            of_all = moments == "gram"
            M = upload["gram"] if of_all else upload.table(moments, C)[0]
            return {**statistics.sent_sums(upload, C), "M": F.in_float64(M)}

        def solve(A: Tensor, N: Tensor, M: Tensor) -> Mapping[str, Tensor]:
            mu, log_pi = A / N.clamp(min=1).unsqueeze(1), (N / N.sum()).log()
            if config.head == "nb-diag":
                return naive_bayes(mu, log_pi, M, N)
            pooled = shrunk(pooled_covariance(mu, N, M), config.lda_shrink)
            if config.head == "lda":
                return linear(mu, log_pi, pooled)
            if config.head == "qda":
                return quadratic(mu, log_pi, shrunk(covariances(mu, N, M), config.qda_shrink))
            return trained(server, mu, N, covariances(mu, N, M), pooled)

        return statistics.heads(server, uploads, read, solve)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Predict by the head of the server; by the own head, before there is one."""
        key = {"nb-diag": "inverse_variances", "qda": "precisions"}.get(client.config.head)

        def curved(X: Tensor) -> Tensor:
            """Return −½ xᵀ·P_c·x, B×C."""
            P = F.in_float64(client.received.table(key or "", client.num_classes)[0])
            if P.dim() == 2:
                return X.square() @ P.T / -2
            return torch.einsum("bk,ckl,bl->bc", X, P, X) / -2

        return statistics.linear_scores(client, x, "offsets", curved if key else None)


MOMENTS: Mapping[Head, str] = {
    "nb-diag": "feature_squares",
    "lda": "gram",
    "qda": "class_grams",
    "fisher-mix": "class_grams",
    "proto-hyper": "class_grams",
}
"""The key of the second moments that a head needs."""


def class_moments(client: pf.Client[Any], moments: str) -> Tensor:
    """Return Q_c [C, K] (``feature_squares``) or S_c [C, K, K] (``class_grams``), in float64."""
    features, labels = client.train_features()
    X = F.in_float64(features)
    labels = labels.to(X.device)
    each = [X[labels == c] for c in range(client.num_classes)]
    if moments == "feature_squares":
        return torch.stack([rows.square().sum(0) for rows in each])
    return torch.stack([rows.T @ rows for rows in each])


# --- covariances ----------------------------------------------------------------------------------


def pooled_covariance(mu: Tensor, N: Tensor, M: Tensor) -> Tensor:
    """Return Σ, K×K.

    Args:
        mu: μ_c, C×K.
        N: Samples of each class, [C].
        M: B [K, K], or S_c [C, K, K].
    """
    B = M if M.dim() == 2 else M.sum(0)
    return (B - (N * mu.T) @ mu) / (N.sum() - (N > 0).sum()).clamp(min=1)


def covariances(mu: Tensor, N: Tensor, S: Tensor) -> Tensor:
    """Return Σ_c, C×K×K; Σ for classes of less than two samples.

    Args:
        mu: μ_c, C×K.
        N: Samples of each class, [C].
        S: S_c, C×K×K.
    """
    counts = N.view(-1, 1, 1)
    own = (S - counts * mu.unsqueeze(2) * mu.unsqueeze(1)) / (counts - 1).clamp(min=1)
    return torch.where(counts > 1, own, pooled_covariance(mu, N, S))


def shrunk(S: Tensor, alpha: float) -> Tensor:
    """Return shrink_α(S) of one or several covariances, […, K, K]."""
    eye = torch.eye(S.shape[-1]).to(S)
    sphere = S.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * eye
    return (1 - alpha) * S + alpha * sphere + EPSILON * eye


# --- heads in closed form -------------------------------------------------------------------------


def naive_bayes(mu: Tensor, log_pi: Tensor, Q: Tensor, N: Tensor) -> dict[str, Tensor]:
    """Return W, b and 1/v_c of nb-diag.

    Args:
        mu: μ_c, C×K.
        log_pi: log π_c, [C].
        Q: Q_c, C×K.
        N: Samples of each class, [C].
    """
    v = (Q / N.clamp(min=1).unsqueeze(1) - mu.square()).clamp(min=EPSILON)
    W = mu / v
    b = log_pi - (W * mu).sum(1) / 2 - v.log().sum(1) / 2
    return {"discriminants": W, "offsets": b, "inverse_variances": 1 / v}


def linear(mu: Tensor, log_pi: Tensor, S: Tensor) -> dict[str, Tensor]:
    """Return W and b of lda, from μ_c [C, K], log π_c [C] and a covariance [K, K]."""
    W = torch.linalg.solve(S, mu.T).T
    return {"discriminants": W, "offsets": log_pi - (W * mu).sum(1) / 2}


def quadratic(mu: Tensor, log_pi: Tensor, S: Tensor) -> dict[str, Tensor]:
    """Return W, b and Σ_c⁻¹ of qda, from μ_c [C, K], log π_c [C] and covariances [C, K, K]."""
    L = torch.linalg.cholesky(S)
    P = torch.cholesky_inverse(L)
    W = (P @ mu.unsqueeze(2)).squeeze(2)
    half_log_det = L.diagonal(dim1=1, dim2=2).log().sum(1)
    b = log_pi - (W * mu).sum(1) / 2 - half_log_det
    return {"discriminants": W, "offsets": b, "precisions": P}


# --- heads that are trained -----------------------------------------------------------------------


def trained(
    server: pf.Server[GHOFL.Config], mu: Tensor, N: Tensor, S: Tensor, pooled: Tensor
) -> dict[str, Tensor]:
    """Return W and b of fisher-mix or proto-hyper.

    Args:
        server: The server, for options and draws.
        mu: μ_c, C×K.
        N: Samples of each class, [C].
        S: Σ_c, C×K×K.
        pooled: shrink_α(Σ), K×K.
    """
    config, there = server.config, N > 0
    pi = N[there] / N.sum()
    V = fisher_subspace(mu[there], pi, pooled, config.fisher_energy, config.fisher_max_dim)
    means = mu[there] @ V
    z, y = synthetic(server, means, V.T @ shrunk(S[there], config.syn_shrink) @ V)
    fit = fisher_mix if config.head == "fisher-mix" else proto_hyper
    W, b = fit(server, z, y, means.to(z), pi.log().to(z))
    discriminants, offsets = torch.zeros_like(mu), torch.zeros_like(N)
    discriminants[there], offsets[there] = W.to(V) @ V.T, b.to(V)
    return {"discriminants": discriminants, "offsets": offsets}


def fisher_subspace(mu: Tensor, pi: Tensor, S: Tensor, energy: float, most: int) -> Tensor:
    """Return V, K×k, such that Vᵀ·S·V = I.

    Args:
        mu: μ_c, C×K.
        pi: π_c, [C].
        S: shrink_α(Σ), K×K.
        energy: Part of the eigenvalues' sum that is kept.
        most: Largest k.
    """
    values, vectors = torch.linalg.eigh(S)
    whitening = vectors * values.clamp(min=EPSILON).rsqrt() @ vectors.T
    between = pi.sqrt().unsqueeze(1) * (mu - pi @ mu) @ whitening  # its square is S_B, whitened
    _, root, directions = torch.linalg.svd(between, full_matrices=False)
    kept = root.square().cumsum(0) / root.square().sum().clamp(min=EPSILON**2)
    k = min(int((kept < energy).sum()) + 1, most, len(directions))
    U = directions[:k].T
    largest = U.gather(0, U.abs().argmax(0, keepdim=True))
    V: Tensor = whitening @ (U * largest.sign())  # eigenvectors have no sign of their own
    return V


def synthetic(server: pf.Server[GHOFL.Config], means: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return synthetic samples z [n, k] and their labels [n].

    Args:
        server: The server, for options and draws.
        means: Vᵀ·μ_c, C×k.
        S: Vᵀ·Σ_c·V, C×k×k.
    """
    (C, k), each, device = means.shape, server.config.syn_ns_per_class, server.device
    L = torch.linalg.cholesky(server.config.syn_tau**2 * S)
    noise = torch.randn(C, each, k, generator=server.generator("samples")).to(device)
    z = means.unsqueeze(1).to(noise) + noise @ L.mT.to(noise)
    return z.view(C * each, k), torch.arange(C, device=device).repeat_interleave(each)


def fisher_mix(
    server: pf.Server[GHOFL.Config], z: Tensor, y: Tensor, means: Tensor, log_pi: Tensor
) -> tuple[Tensor, Tensor]:
    """Return W [C, k] and b [C] of fisher-mix, which start from 0.

    Args:
        server: The server, for options.
        z: Synthetic samples, n×k.
        y: Their labels, [n].
        means: Vᵀ·μ_c, C×k.
        log_pi: log π_c, [C].
    """
    W, b = torch.zeros_like(means).requires_grad_(), torch.zeros_like(log_pi).requires_grad_()

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(z[rows] @ W.T + b, y[rows])

    statistics.train_head(
        server, loss, [W, b], len(z), server.config.epochs, 2048, lr=8e-4, weight_decay=3e-4
    )
    return W.detach(), b.detach()


def proto_hyper(
    server: pf.Server[GHOFL.Config], z: Tensor, y: Tensor, means: Tensor, log_pi: Tensor
) -> tuple[Tensor, Tensor]:
    """Return W [C, k] and b [C] of proto-hyper: those of g, and the residual, which starts from 0.

    The arguments are those of `fisher_mix`.
    """
    config, (C, k) = server.config, means.shape
    rank = min(config.ph_rank, k)
    down = torch.rand(rank, k, generator=server.generator("residual")).to(z)
    down = ((2 * down - 1) / math.sqrt(k)).requires_grad_()
    up, b = z.new_zeros(C, rank).requires_grad_(), z.new_zeros(C).requires_grad_()
    offsets = log_pi - means.square().sum(1) / 2
    teacher = z @ means.T + offsets

    def loss(rows: Tensor) -> Tensor:
        g = teacher[rows]
        student = g + z[rows] @ down.T @ up.T + b
        kl, ce = F.kl_divergence(student, g, config.kd_T), cross_entropy(student, y[rows])
        return config.kd_alpha * kl + (1 - config.kd_alpha) * ce

    statistics.train_head(
        server, loss, [down, up, b], len(z), config.epochs, 1024, lr=1e-3, weight_decay=5e-4
    )
    with torch.no_grad():
        return means + up @ down, offsets + b

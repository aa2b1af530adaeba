"""Gaussian mixtures of the features of each class: expectation maximisation, and samples.

    p(x)   Σ_g w_g·N(x; μ_g, Σ_g), Σ_g = σ_g²·I (spherical), diag(v_g) (diag) or full
    E      r_g(x) = w_g·N(x; μ_g, Σ_g)/p(x)
    M      w_g = mean r_g,  μ_g, Σ_g: mean and covariance of the samples with the weights r_g

The steps are those of scikit-learn's GaussianMixture, for all classes at once: covariances get
`RIDGE` on their diagonals. m is the number of classes, G that of components, K that of features.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from protofl import functional as F

RIDGE = 1e-6
"""Added to all variances."""

TOLERANCE = 1e-12
"""Iterations end if the mean log-likelihood of no class changes by as much."""

Covariance = Literal["spherical", "diag", "full"]


class Mixtures(NamedTuple):
    """Mixtures of m classes.

    Attributes:
        weights: w_g, m×G.
        means: μ_g, m×G×K.
        covariances: σ_g² [m, G], v_g [m, G, K] or Σ_g [m, G, K, K].
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor


def fit(
    features: Tensor,
    labels: Tensor,
    classes: Tensor,
    components: int,
    kind: Covariance,
    iterations: int,
    generator: torch.Generator,
) -> Mixtures:
    """Return the mixtures of some classes, in float64.

    Components start from the samples that are nearest to each of G seeds (k-means++).

    Args:
        features: n×K.
        labels: Their classes, [n].
        classes: The classes to fit, [m]; each has a sample at least.
        components: G.
        kind: The form of covariances.
        iterations: Most iterations.
        generator: A CPU generator, for the seeds.
    """
    rows = [F.in_float64(features[labels == c]) for c in classes.tolist()]
    X = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    counts = torch.tensor([len(each) for each in rows], device=X.device)
    there = torch.arange(X.shape[1], device=X.device) < counts.unsqueeze(1)
    middle = X.sum(1, keepdim=True) / counts.view(-1, 1, 1)  # keeps digits of the variances
    X = (X - middle) * there.unsqueeze(2)
    r = first_responsibilities(X, there, components, generator)
    mixtures, old = maximised(X, r, kind), X.new_full((len(X),), -math.inf)
    for _ in range(iterations):
        r, new = expected(X, there, mixtures)
        mixtures = maximised(X, r, kind)
        if bool(((new - old).abs() < TOLERANCE).all()):
            break
        old = new
    return mixtures._replace(means=mixtures.means + middle)


def first_responsibilities(
    X: Tensor, there: Tensor, components: int, generator: torch.Generator
) -> Tensor:
    """Return r_g of the start, m×M×G: 1 for the nearest seed. k-means++ draws the seeds.

    Args:
        X: Samples of each class, m×M×K.
        there: Mask of the samples, m×M.
        components: G.
        generator: A CPU generator.
    """
    chances, seeds = there.cpu().double(), list[Tensor]()
    for _ in range(components):
        seed = drawn(chances, generator).to(X.device).view(-1, 1, 1)
        seeds.append(X.gather(1, seed.expand(-1, 1, X.shape[2])))
        distances = torch.cdist(X, torch.cat(seeds, 1)).square()
        # A class of equal samples has no distances, and may draw any of them.
        chances = ((distances.amin(2) + torch.finfo(X.dtype).tiny) * there).cpu()
    return one_hot(distances.argmin(2), components).to(X) * there.unsqueeze(2)


def maximised(X: Tensor, r: Tensor, kind: Covariance) -> Mixtures:
    """Return the mixtures of responsibilities: the M step.

    Args:
        X: Samples of each class, m×M×K.
        r: r_g, m×M×G; 0 for rows without a sample.
        kind: The form of covariances.
    """
    N = r.sum(1) + 10 * torch.finfo(r.dtype).eps
    means = r.mT @ X / N.unsqueeze(2)
    if kind == "full":
        apart = X.unsqueeze(1) - means.unsqueeze(2)  # m×G×M×K
        S = (r.mT.unsqueeze(3) * apart).mT @ apart / N[..., None, None]
        covariances = S + RIDGE * torch.eye(X.shape[2]).to(X)
    else:
        covariances = r.mT @ X.square() / N.unsqueeze(2) - means.square() + RIDGE
        covariances = covariances.mean(2) if kind == "spherical" else covariances
    return Mixtures(N / N.sum(1, keepdim=True), means, covariances)


def expected(X: Tensor, there: Tensor, mixtures: Mixtures) -> tuple[Tensor, Tensor]:
    """Return r_g [m, M, G], and the mean log-likelihood of each class [m]: the E step.

    Args:
        X: Samples of each class, m×M×K.
        there: Mask of the samples, m×M.
        mixtures: The mixtures.
    """
    weights, means, S = mixtures
    K = X.shape[2]
    if S.dim() == 4:
        L = torch.linalg.cholesky(S)
        apart = (X.unsqueeze(1) - means.unsqueeze(2)).mT  # m×G×K×M
        squares = torch.linalg.solve_triangular(L, apart, upper=False).square().sum(2).mT
        log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    else:
        v = S.unsqueeze(2).expand_as(means) if S.dim() == 2 else S
        P = 1 / v
        squares = X.square() @ P.mT - 2 * X @ (means * P).mT
        squares = squares + (means.square() * P).sum(2).unsqueeze(1)
        log_det = v.log().sum(2)
    constant = weights.log() - (K * math.log(2 * math.pi) + log_det) / 2
    joint = constant.unsqueeze(1) - squares / 2  # m×M×G
    log_p = joint.logsumexp(2)
    r = (joint - log_p.unsqueeze(2)).exp() * there.unsqueeze(2)
    return r, (log_p * there).sum(1) / there.sum(1)


def sample(mixtures: Mixtures, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return samples of each mixture, Σ counts × K, sorted by their mixture.

    Args:
        mixtures: The mixtures of m classes; covariances may be rounded.
        counts: Number of samples of each, [m].
        generator: A CPU generator.
    """
    weights, means, S = mixtures
    (m, G, K), device, dtype = means.shape, means.device, torch.get_default_dtype()
    chances = weights.cpu().double().repeat_interleave(counts.cpu(), 0)
    chosen = torch.arange(m).repeat_interleave(counts.cpu()) * G + drawn(chances, generator)
    chosen = chosen.sort().values
    noise = torch.randn(len(chosen), K, generator=generator).to(device)
    middle = means.flatten(0, 1).to(dtype)[chosen.to(device)]
    if S.dim() == 4:
        values, vectors = torch.linalg.eigh(F.in_float64(S.flatten(0, 1)))
        root = (vectors * values.clamp(min=0).sqrt().unsqueeze(1)).to(noise)  # root·rootᵀ = Σ_g
        each = torch.split(noise, torch.bincount(chosen, minlength=m * G).tolist())
        return middle + torch.cat([e @ R.T for e, R in zip(each, root, strict=True)])
    deviation = S.flatten(0, 1).clamp(min=0).sqrt().to(dtype)[chosen.to(device)]
    return middle + noise * (deviation.unsqueeze(1) if S.dim() == 2 else deviation)


def drawn(chances: Tensor, generator: torch.Generator) -> Tensor:
    """Return a place of each row, [n], with the chances of the row, n×m.

    torch.multinomial draws other numbers in other versions of torch.
    """
    ends = chances.cumsum(1)
    u = ends[:, -1:] * torch.rand(len(ends), 1, dtype=ends.dtype, generator=generator)
    return torch.searchsorted(ends, u, right=True).squeeze(1).clamp(max=ends.shape[1] - 1)

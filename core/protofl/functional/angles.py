"""Angles between prototypes: alignment, orthogonality, and repulsion on the unit sphere."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofl.functional._checks import (
    check_classes,
    check_labels,
    check_mask,
    check_shape,
    result_dtype,
)

THRESHOLD, TEMPERATURE = 0.3, 0.5
"""Constants of the adaptive weights in FedORGP's published code."""


def cosine_alignment(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The mean of 1 − cos(f, P^y) over samples: L_R of FedORGP Eq. 8.

    Args:
        features: f [N, K].
        labels: y [N], integers in 0…C−1.
        prototypes: P [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool, the classes that have a prototype.

    Returns:
        Scalar, without unit: the sum over the samples of a known class, divided by all N; 0 where
        N = 0.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_classes(features, prototypes)
    check_mask("known", known, prototypes.shape[0])
    check_labels("labels", labels, features.shape[0])
    dtype, labels = result_dtype(features, prototypes), labels.long()
    targets = normalize(prototypes.to(dtype)[labels], dim=1)
    cosines = (normalize(features.to(dtype), dim=1) * targets).sum(1)
    return (1 - cosines).masked_fill(~known[labels], 0.0).sum() / max(len(features), 1)


def orthogonality_loss(
    anchored: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    lambda_s: float = 1.0,
    gamma: float = 10.0,
    adaptive: bool = False,
) -> Tensor:
    """L_OR = λ_s·(1 − s) + γ·d: FedORGP Eq. 5, with s of Eq. 3 and d of Eq. 4.

    s is the mean cosine of a client's prototype and the global one of its class, d the mean
    absolute cosine with the global ones of the other classes.

    Args:
        anchored: P_k^c of clients, [N, K].
        labels: Their classes, [N] integers in 0…C−1.
        prototypes: P̂ [C, K].
        lambda_s: λ_s.
        gamma: γ.
        adaptive: Weight each term of the sums by 1 + σ((a − 0.3)/0.5), as the published code does;
            a is the absolute cosine itself in d, and its mean over the other classes in s.

    Returns:
        Scalar, without unit; 0 where N = 0.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_classes(anchored, prototypes, "anchored")
    check_labels("labels", labels, anchored.shape[0])
    dtype, labels = result_dtype(anchored, prototypes), labels.long().unsqueeze(1)
    rows, C = max(len(anchored), 1), len(prototypes)
    cosines = normalize(anchored.to(dtype), dim=1) @ normalize(prototypes.to(dtype), dim=1).T
    apart = 1 - cosines.gather(1, labels).squeeze(1)  # N, the terms of 1 − s
    others = cosines.abs().scatter(1, labels, 0.0)  # N×C, the terms of d
    if adaptive:
        apart = apart * (1 + _adaptive(others.sum(1) / max(C - 1, 1)))
        others = others * (1 + _adaptive(others))
    return lambda_s * apart.sum() / rows + gamma * others.sum() / (rows * max(C - 1, 1))


def _adaptive(cosines: Tensor) -> Tensor:
    """The share by which the published code raises a term, σ((a − 0.3)/0.5)."""
    return torch.sigmoid((cosines - THRESHOLD) / TEMPERATURE)


@torch.no_grad()
def repelled_on_sphere(
    prototypes: Tensor,
    known: Tensor,
    potential: Literal["coulomb", "log"] = "coulomb",
    steps: int = 500,
    lr: float = 0.1,
    momentum: float = 0.9,
) -> Tensor:
    """Return the prototypes as unit vectors that repel each other: ProtoNorm's alignment.

    Each step moves every point by its velocity, momentum · velocity + lr · force, and projects it
    back on the sphere. The rate falls by 5 % every tenth step. It ends early when the mean force,
    rounded to four decimals, has stayed the same for ten steps; the first eleven do not count.

    Args:
        prototypes: [C, K]; a known row has to differ from 0.
        known: [C] bool; the others neither move nor repel.
        potential: The energy of two points at distance d: 1/d, whose force is 1/d² (the Thomson
            problem), or −log d, whose force is 1/d (the published code).
        steps: The most steps.
        lr: Their first rate.
        momentum: In 0…1.

    Returns:
        [C, K], rows of length 1, or 0 for unknown classes.

    Raises:
        ValueError: A shape or dtype is wrong, or the potential is unknown.
    """
    check_shape("prototypes", prototypes, "C K")
    check_mask("known", known, prototypes.shape[0])
    if potential not in ("coulomb", "log"):
        raise ValueError(f"potential must be coulomb or log: got {potential!r}")
    dtype = result_dtype(prototypes)
    points = normalize(prototypes[known].to(dtype), dim=1)
    velocity, last, same = torch.zeros_like(points), None, 0
    for step in range(steps if len(points) > 1 else 0):
        force = _repulsion(points, potential)
        velocity = momentum * velocity + lr * force
        points = normalize(points + velocity, dim=1)
        if step % 10 == 0:
            lr *= 0.95
        if step >= 10:
            mean = round(float(force.norm(dim=1).mean()), 4)
            same = same + 1 if mean == last else 0
            last = mean
            if same == 10:
                break
    moved = torch.zeros_like(prototypes, dtype=dtype)
    moved[known] = points
    return moved


def _repulsion(points: Tensor, potential: Literal["coulomb", "log"]) -> Tensor:
    """Σ_j (p_i − p_j)/‖p_i − p_j‖^a for every unit vector i, [n, K]: a = 3 (Coulomb) or 2."""
    squares = (2 - 2 * points @ points.T).clamp_min(1e-6)  # of the distances
    weights = squares ** (-1.5 if potential == "coulomb" else -1.0)
    weights.fill_diagonal_(0)
    return points * weights.sum(1, keepdim=True) - weights @ points

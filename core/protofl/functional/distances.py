"""Distances between features and prototypes: φ of FedProto and FedTGP, d of FedSA."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import (
    check_classes,
    check_floating,
    check_labels,
    check_mask,
    check_shape,
    result_dtype,
)
from protofl.functional.precision import has_float64

Distance = Literal["l2", "mse"]

FEW = 1 << 17
"""Products N·M·K up to which the differences themselves are faster on a CPU than a product of
matrices in float64, as they take one operation: the class means of a training step."""


def _expand(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """‖x_n − y_m‖² for all pairs, by one matrix product in float64, and which pairs coincide.

    |x|² + |y|² − 2x·y cancels for near points: in float32 two points 0.1 % of their norm apart
    come out wrong by a third or more. In float64 the product costs tens of microseconds at the
    sizes of a training step and is exact to float32's resolution; it also stays clear of TF32 and
    of autocast, which leave float64 alone. Points closer than the rounding of the sum can tell,
    about 1e-7 of their norm, coincide.

    Args:
        x: [N, K].
        y: [M, K].

    Returns:
        The squares [N, M] in float64 (float32 on MPS, which has no float64), of no meaning where
        the pair coincides, and that mask [N, M] bool.
    """
    wide = torch.float64 if has_float64(x.device) else torch.float32
    x, y = x.to(wide), y.to(wide)
    norms = x.square().sum(1, keepdim=True) + y.square().sum(1)
    squared = torch.addmm(norms, x, y.T, alpha=-2.0)
    # "<=" is false for NaN, so that a diverged model shows as NaN and not as distance 0.
    return squared, squared <= 32 * torch.finfo(wide).eps * norms


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return ‖x_n − y_m‖² of all pairs, in float64, for kernels and other functions of distances.

    In float32 the distances of near points would be wrong by a third or more.

    Args:
        x: [N, K].
        y: [M, K].

    Returns:
        [N, M], 0 with gradient 0 where the two coincide, in the squared unit of the rows.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("x", x, "N K")
    check_shape("y", y, "M K", K=x.shape[1])
    check_floating(x=x, y=y)
    squared, coincide = _expand(x, y)
    return squared.masked_fill(coincide, 0.0)


def euclidean_distances(x: Tensor, y: Tensor) -> Tensor:
    """‖x_n − y_m‖ [N, M] in float32 or float64, 0 with gradient 0 where the two coincide."""
    traced = not isinstance(x.shape[0], int)  # by torch.export, for any number of rows
    if x.device.type == "cpu" and not traced and x.shape[0] * y.numel() <= FEW:
        dtype = result_dtype(x, y)
        mode = "donot_use_mm_for_euclid_dist"
        return torch.cdist(x.to(dtype), y.to(dtype), compute_mode=mode)
    squared, coincide = _expand(x, y)
    # The root is taken of 1 there, as its gradient at 0 is infinite.
    return squared.masked_fill(coincide, 1.0).sqrt().masked_fill(coincide, 0.0)


def check_distance(distance: str) -> None:
    """Raise ``ValueError`` unless ``distance`` names one of the two distances."""
    if distance not in ("l2", "mse"):
        raise ValueError(f"distance must be 'l2' or 'mse': got {distance!r}")


def prototype_distance(features: Tensor, prototypes: Tensor, distance: Distance = "l2") -> Tensor:
    """The distance of every feature to every prototype.

    ``l2`` is the papers' Euclidean distance φ (FedTGP, text below Eq. 4; d in FedSA, text below
    Eq. 5); ``mse`` is ‖f − P‖²/K, the mean squared error that published code takes in its place.
    The gradient is 0 where the distance is 0.

    Args:
        features: [N, K].
        prototypes: [C, K].
        distance: ``l2`` or ``mse``.

    Returns:
        [N, C], in the unit of the features (``l2``) or its square (``mse``).

    Raises:
        ValueError: A shape, dtype or ``distance`` is wrong.
    """
    check_classes(features, prototypes)
    check_distance(distance)
    if distance == "l2":
        result = euclidean_distances(features, prototypes)
    else:
        result = squared_distances(features, prototypes) / features.shape[1]
    return result.to(result_dtype(features, prototypes))


def prototype_alignment(
    features: Tensor,
    labels: Tensor | None,
    prototypes: Tensor,
    known: Tensor,
    distance: Distance = "l2",
) -> Tensor:
    """The mean distance of features to the prototypes of their own classes.

    FedTGP Eq. 4 and 11, FedSA Eq. 5, FedPKD Eq. 12 and 16, with the rows given here in the place
    of the sum over classes: pass a batch's features to align every sample, or class means to
    align those. The gradient is 0 where the distance is 0.

    Args:
        features: [N, K].
        labels: [N] integers in 0…C−1; None where row c is of class c, as of class means.
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool, the classes that have a prototype.
        distance: ``l2`` (Euclidean) or ``mse`` (squared, divided by K).

    Returns:
        Scalar: the sum over the rows of a known class, divided by all N; 0 where N = 0.

    Raises:
        ValueError: A shape, dtype or ``distance`` is wrong.
    """
    check_classes(features, prototypes)
    check_mask("known", known, prototypes.shape[0])
    check_distance(distance)
    dtype = result_dtype(features, prototypes)
    prototypes = prototypes.to(dtype)
    if labels is None:
        check_shape("features", features, "C K", C=prototypes.shape[0])
    else:
        check_labels("labels", labels, features.shape[0])
        labels = labels.long()
        prototypes, known = prototypes[labels], known[labels]
    # One row each, so the difference itself is affordable, and exact for near points.
    difference = (features.to(dtype) - prototypes).masked_fill(~known.unsqueeze(1), 0.0)
    if distance == "mse":
        return difference.square().sum() / max(difference.numel(), 1)
    # torch's norm has the gradient 0 at 0.
    rows: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return rows.sum() / max(features.shape[0], 1)


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
    targets = F.normalize(prototypes.to(dtype)[labels], dim=1)
    cosines = (F.normalize(features.to(dtype), dim=1) * targets).sum(1)
    return (1 - cosines).masked_fill(~known[labels], 0.0).sum() / max(len(features), 1)

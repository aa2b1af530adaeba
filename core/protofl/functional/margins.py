"""Margins between prototypes, and the contrastive loss that enforces one."""

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
from protofl.functional.distances import euclidean_distances, prototype_distance


def _pairs(prototypes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The distances of all ordered pairs of classes [C, C], and which pairs are a ≠ b, known."""
    check_shape("prototypes", prototypes, "C K")
    check_floating(prototypes=prototypes)
    check_mask("known", known, prototypes.shape[0])
    if prototypes.shape[0] == 0:
        raise ValueError(f"prototypes needs a class: got shape {list(prototypes.shape)}")
    rows = prototypes.masked_fill(~known.unsqueeze(1), 0.0)
    other = ~torch.eye(known.shape[0], dtype=torch.bool, device=known.device)
    return euclidean_distances(rows, rows), known.unsqueeze(0) & known.unsqueeze(1) & other


def pair_margin(prototypes: Tensor, known: Tensor) -> Tensor:
    """The largest distance between two classes: FedTGP Eq. 9 before the threshold τ.

    Args:
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.

    Returns:
        Scalar, in the unit of the prototypes; 0 where fewer than two classes are known.

    Raises:
        ValueError: A shape or dtype is wrong, or C = 0.
    """
    distances, pairs = _pairs(prototypes, known)
    return distances.masked_fill(~pairs, 0.0).amax().to(result_dtype(prototypes))


def nearest_margin(prototypes: Tensor, known: Tensor) -> Tensor:
    """The largest, over classes, of the distance to the nearest other class.

    What the caption of FedTGP's Fig. 1 calls the prototype margin, and what published code takes
    in the place of Eq. 9.

    Args:
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.

    Returns:
        Scalar, in the unit of the prototypes; 0 where fewer than two classes are known.

    Raises:
        ValueError: A shape or dtype is wrong, or C = 0.
    """
    distances, pairs = _pairs(prototypes, known)
    nearest = distances.masked_fill(~pairs, torch.inf).amin(1)
    return nearest.masked_fill(~pairs.any(1), 0.0).amax().to(result_dtype(prototypes))


def class_margins(prototypes: Tensor, known: Tensor) -> Tensor:
    """Return each class's distance to the nearest other class: the margin of FedTGP's Fig. 1.

    Args:
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.

    Returns:
        [C], in the unit of the prototypes; NaN for an unknown class, or the only known one.

    Raises:
        ValueError: A shape or dtype is wrong, or C = 0.
    """
    distances, pairs = _pairs(prototypes, known)
    nearest = distances.masked_fill(~pairs, torch.inf).amin(1)
    return nearest.masked_fill(~pairs.any(1), torch.nan).to(result_dtype(prototypes))


def largest_margins(prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the largest of the clients' `class_margins` by class: "maximum" in FedTGP's Fig. 1.

    Args:
        prototypes: [M, C, K] of M ≥ 1 clients.
        known: [M, C] bool, the classes that each has.

    Returns:
        [C]; NaN for a class that no client has beside another one.
    """
    pairs = zip(prototypes, known, strict=True)
    margins = torch.stack([class_margins(*each) for each in pairs])
    largest = margins.masked_fill(margins.isnan(), -torch.inf).amax(0)
    return largest.masked_fill(largest == -torch.inf, torch.nan)


def mean_margin(
    prototypes: Tensor, known: Tensor, of: Literal["pairs", "nearest"] = "pairs"
) -> Tensor:
    """The "average margin" of FedSA Eq. 6 as printed: Σ_a Σ_{b≠a} d(P^a, P^b) / (N − 1)².

    N is the number of known classes. There are N(N − 1) ordered pairs, so this is N/(N − 1) times
    their mean: twice the distance for N = 2.

    Args:
        prototypes: [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool.
        of: ``pairs`` for Eq. 6; ``nearest`` for the mean, over classes, of the distance to the
            nearest other class, which FedSA's published code takes in its place.

    Returns:
        Scalar, in the unit of the prototypes; 0 where fewer than two classes are known.

    Raises:
        ValueError: A shape, dtype or ``of`` is wrong, or C = 0.
    """
    if of not in ("pairs", "nearest"):
        raise ValueError(f"of must be 'pairs' or 'nearest': got {of!r}")
    distances, pairs = _pairs(prototypes, known)
    if of == "pairs":
        total, number = distances.masked_fill(~pairs, 0.0).sum(), (known.sum() - 1).square()
    else:
        paired = pairs.any(1)
        nearest = distances.masked_fill(~pairs, torch.inf).amin(1).masked_fill(~paired, 0.0)
        total, number = nearest.sum(), paired.sum()
    return (total / number.clamp_min(1)).to(result_dtype(prototypes))


def margin_contrastive_loss(
    anchored: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    margin: float | Tensor,
    known: Tensor | None = None,
) -> Tensor:
    """The margin-enhanced contrastive loss, a mean over rows: FedTGP Eq. 10, FedSA Eq. 7.

    Row n of class c, with the margin δ (FedTGP) or d* (FedSA) and Euclidean distances d, costs
    −log( e^−(d_c + δ) / (e^−(d_c + δ) + Σ_{c'≠c} e^−d_c') ). Margin 0 gives FedTGP Eq. 6.

    Args:
        anchored: [N, K], the class prototypes or features that are pulled to their anchors.
        labels: [N] integers in 0…C−1.
        prototypes: [C, K], the trainable prototypes (FedTGP) or anchors (FedSA).
        margin: A number or a 0-d tensor, in the unit of the prototypes.
        known: [C] bool; unknown classes leave the denominator, and rows of an unknown class add
            0. All classes where ``None``.

    Returns:
        Scalar, without unit; 0 where N = 0.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_classes(anchored, prototypes, "anchored")
    check_labels("labels", labels, anchored.shape[0])
    if isinstance(margin, Tensor) and margin.ndim != 0:
        raise ValueError(f"margin must be a number or a 0-d tensor: got shape {[*margin.shape]}")
    labels, dtype = labels.long(), result_dtype(anchored, prototypes)
    own_class = labels.unsqueeze(1) == torch.arange(len(prototypes), device=labels.device)
    # The cast first: a bool times a Python number would be rounded to float32.
    penalty = own_class.to(dtype) * margin
    if known is not None:
        check_mask("known", known, len(prototypes))
        # The row's own class stays in even where it is unknown: a softmax over no class at all has
        # the gradient NaN, which no mask after it takes away.
        penalty = penalty.masked_fill(~(known | own_class), torch.inf)
        prototypes = prototypes.masked_fill(~known.unsqueeze(1), 0.0)
    scores = -(prototype_distance(anchored, prototypes) + penalty)
    rows = F.cross_entropy(scores, labels, reduction="none")
    if known is not None:
        rows = rows.masked_fill(~known[labels], 0.0)
    return rows.sum() / max(len(rows), 1)

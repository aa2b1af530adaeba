"""FedSA's losses of features against semantic anchors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import (
    check_floating,
    check_labels,
    check_mask,
    check_shape,
)
from protofl.functional.distances import (
    Distance,
    check_distance,
    prototype_alignment,
    prototype_distance,
)
from protofl.functional.prototypes import class_means

Rows = Literal["class", "sample"]


def anchor_alignment(
    features: Tensor,
    labels: Tensor,
    anchors: Tensor,
    known: Tensor,
    distance: Distance = "l2",
    rows: Rows = "class",
) -> Tensor:
    """L_R, the distance of a batch's rows to the anchors of their classes: FedSA Eq. 5.

    Args:
        features: [N, K].
        labels: [N] integers in 0…C−1.
        anchors: Ā [C, K]; the rows of unknown classes are not looked at.
        known: [C] bool, the classes that have an anchor.
        distance: ``l2`` (Euclidean) or ``mse`` (squared, divided by K).
        rows: ``class`` for the sum over the batch's class means P_i^c, as Eq. 5 has it;
            ``sample`` for the mean over its samples, as published code has it.

    Returns:
        Scalar.

    Raises:
        ValueError: A shape, dtype, ``distance`` or ``rows`` is wrong.
    """
    _check_rows(rows)
    check_mask("known", known, len(anchors))
    if rows == "sample":
        return prototype_alignment(features, labels, anchors, known, distance)
    means, counts = class_means(features, labels, len(anchors))
    pulled = known & (counts > 0)
    return len(anchors) * prototype_alignment(means, None, anchors, pulled, distance)


def anchor_contrast(
    features: Tensor,
    labels: Tensor,
    anchors: Tensor,
    known: Tensor,
    penalty: Tensor,
    rows: Rows = "class",
) -> Tensor:
    """L_MCL, the margin-enhanced contrastive loss against anchors: FedSA Eq. 7.

    A row of class c costs −log softmax_c(−(d + penalty_c)), d its distances to all anchors.

    Args:
        features: [N, K], N ≥ 1.
        labels: [N] integers in 0…C−1.
        anchors: Ā [C, K]; finite, and without influence, where unknown.
        known: [C] bool, the classes that have an anchor; a row of another class costs 0.
        penalty: [C, C], `margin_penalty` of the classes 0…C−1 in their order.
        rows: ``class`` for the mean over the batch's class means P_i^c, as Eq. 7 has it;
            ``sample`` for the mean over its samples, as published code has it.

    Returns:
        Scalar, without unit.

    Raises:
        ValueError: A shape, dtype or ``rows`` is wrong.
    """
    _check_rows(rows)
    check_mask("known", known, len(anchors))
    check_shape("penalty", penalty, "C C", C=len(anchors))
    if rows == "sample":
        check_labels("labels", labels, len(features))
        labels, counted = labels.long(), torch.ones_like(labels, dtype=torch.bool)
    else:
        features, counts = class_means(features, labels, len(anchors))
        labels, counted = torch.arange(len(anchors), device=known.device), counts > 0
    scores = -(prototype_distance(features, anchors) + penalty[labels])
    costs = F.cross_entropy(scores, labels, reduction="none")
    return costs.masked_fill(~(counted & known[labels]), 0.0).sum() / counted.sum()


def anchor_terms(
    features: Tensor,
    labels: Tensor,
    anchors: Tensor,
    known: Tensor,
    penalty: Tensor,
    *,
    distance: Distance = "l2",
    align: Rows = "class",
    contrast: Rows = "class",
) -> tuple[Tensor, Tensor]:
    """L_R and L_MCL of FedSA, Eq. 5 and 7, at once.

    What `anchor_alignment` (with ``align`` for ``rows``) and `anchor_contrast` (with ``contrast``)
    return, to rounding. Class means and their distances to anchors are taken once for both, with
    few operations, as in a training step these cost more than the numbers in them.

    Args:
        features: [N, K], N ≥ 1.
        labels: [N] integers in 0…C−1.
        anchors: Ā [C, K]; finite, and without influence, where unknown.
        known: [C] bool, the classes that have an anchor.
        penalty: [C, C], `margin_penalty` of the classes 0…C−1 in their order.
        distance: Of L_R, ``l2`` or ``mse``; that of L_MCL is Euclidean.
        align: The rows of L_R.
        contrast: The rows of L_MCL.

    Returns:
        Two scalars: L_R in the unit of the features (``l2``) or its square, L_MCL without unit.

    Raises:
        ValueError: A shape, dtype or option is wrong.
    """
    _check_rows(align)
    _check_rows(contrast)
    if align == contrast == "sample":
        L_R = prototype_alignment(features, labels, anchors, known, distance)
        return L_R, anchor_contrast(features, labels, anchors, known, penalty, "sample")
    check_mask("known", known, len(anchors))
    check_distance(distance)
    check_shape("penalty", penalty, "C C", C=len(anchors))
    means, counts = class_means(features, labels, len(anchors))  # these check the rest
    d = prototype_distance(means, anchors)  # d(P_i^c, Ā^c')
    present = counts > 0
    here = (known & present).to(d.dtype)
    if align == "sample":
        L_R = prototype_alignment(features, labels, anchors, known, distance)
    else:
        own = d.diagonal()
        L_R = here @ (own if distance == "l2" else own.square() / features.shape[1])
    if contrast == "sample":
        return L_R, anchor_contrast(features, labels, anchors, known, penalty, "sample")
    every = torch.arange(len(anchors), device=d.device)
    share = here / present.sum()
    return L_R, F.cross_entropy(-(d + penalty), every, weight=share, reduction="sum")


def anchor_calibration(scores: Tensor, known: Tensor) -> Tensor:
    """L_CC, the mean cross-entropy of a classifier on the anchors: FedSA Eq. 8.

    Args:
        scores: Of the anchors, [C, C]: row c by the classifier of the anchor of class c.
        known: [C] bool, the classes that have an anchor, one at least; the others are left out.

    Returns:
        Scalar, without unit.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("scores", scores, "C C", C=scores.shape[0])
    check_floating(scores=scores)
    check_mask("known", known, scores.shape[0])
    every = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores, every, weight=known.to(scores.dtype))


def _check_rows(rows: str) -> None:
    if rows not in ("class", "sample"):
        raise ValueError(f"rows must be 'class' or 'sample': got {rows!r}")

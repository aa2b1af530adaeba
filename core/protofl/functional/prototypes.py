"""Prototypes: their collection on a client, aggregation on the server and moving average."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofl.functional._checks import (
    check_floating,
    check_labels,
    check_mask,
    check_shape,
    result_dtype,
)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class: FedTGP Eq. 2, FedSA Eq. 2, FedPKD Eq. 5.

    Differentiable with respect to the features. A NaN in one sample stays in its class.

    Args:
        features: [N, K].
        labels: [N] integers in 0…C−1; or [N, C] of 0 and 1, where a sample counts for each of its
            labels.
        num_classes: C.

    Returns:
        The prototypes [C, K], 0 where a class has no sample, and the counts [C] int64.

    Raises:
        ValueError: A shape or dtype is wrong, or ``num_classes`` is below 1.
    """
    check_shape("features", features, "N K")
    check_floating(features=features)
    if labels.shape == (len(features), num_classes):
        features = features.to(result_dtype(features))
        has = labels.to(features.dtype)
        counts = labels.long().sum(0)
        return has.T @ features / counts.clamp_min(1).to(has.dtype).unsqueeze(1), counts
    check_labels("labels", labels, features.shape[0])
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1: got {num_classes}")
    labels = labels.long()
    features = features.to(result_dtype(features))
    # Out of place: under vmap the zeros need not be batched where the labels are.
    counts = labels.new_zeros(num_classes).index_add(0, labels, torch.ones_like(labels))
    sums = features.new_zeros(num_classes, features.shape[1]).index_add(0, labels, features)
    return sums / counts.clamp_min(1).to(sums.dtype).unsqueeze(1), counts


def aggregate_prototypes(
    prototypes: Tensor,
    counts: Tensor,
    mode: Literal["weighted", "uniform", "eq3"] = "weighted",
) -> tuple[Tensor, Tensor]:
    """The global prototype of every class from those of M clients.

    With N_c the samples of class c on all clients and 𝒩_c the clients that have it:

    * ``weighted``: Σ_i |D_i,c|/N_c · P_i^c.
    * ``uniform``: the plain mean over 𝒩_c (FedTGP's Q^c below Eq. 9; what published code does).
    * ``eq3``: ``weighted`` divided by |𝒩_c| once more, as FedTGP Eq. 3, FedSA Eq. 3 and FedPKD
      Eq. 8 are printed. The weights already sum to 1, so this shrinks the prototypes.

    Args:
        prototypes: [M, C, K]; rows with count 0 are not looked at.
        counts: [M, C], the samples of each row, 0 if the client lacks the class.
        mode: One of the three above.

    Returns:
        The prototypes [C, K], 0 where no client has the class, and known [C] bool.

    Raises:
        ValueError: A shape, dtype or ``mode`` is wrong.
    """
    check_shape("prototypes", prototypes, "M C K")
    check_floating(prototypes=prototypes)
    check_shape("counts", counts, "M C", M=prototypes.shape[0], C=prototypes.shape[1])
    if mode not in ("weighted", "uniform", "eq3"):
        raise ValueError(f"mode must be 'weighted', 'uniform' or 'eq3': got {mode!r}")
    dtype = result_dtype(prototypes)
    present = counts > 0
    known = present.any(0)
    weights = (present if mode == "uniform" else counts).to(dtype)
    total = weights.sum(0)
    if mode == "eq3":
        total = total * present.sum(0)
    rows = prototypes.to(dtype).masked_fill(~present.unsqueeze(2), 0.0)
    sums = (weights.unsqueeze(2) * rows).sum(0)
    return sums / total.masked_fill(~known, 1.0).unsqueeze(1), known


def ema(old: Tensor, new: Tensor, alpha: float, mask: Tensor | None = None) -> Tensor:
    """The exponential moving average α·old + (1 − α)·new: FedSA Eq. 10.

    Args:
        old: [C, …], such as the anchors Ā^t.
        new: [C, …], such as the aggregated prototypes P̄^t.
        alpha: The weight α of ``old``: 1 keeps it, 0 replaces it.
        mask: [C] bool, the rows that move; the others stay ``old`` whatever ``new`` holds there.
            ``None`` moves all.

    Returns:
        A tensor of the shape of ``old``.

    Raises:
        ValueError: A shape or dtype is wrong, or ``alpha`` is outside 0…1.
    """
    if old.shape != new.shape:
        raise ValueError(
            f"new must have the shape of old, {list(old.shape)}: got {list(new.shape)}"
        )
    check_floating(old=old, new=new)
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be between 0 and 1: got {alpha}")
    moved = alpha * old + (1.0 - alpha) * new
    if mask is None:
        return moved
    if old.ndim == 0:
        raise ValueError("mask needs rows to pick: old is a scalar")
    check_mask("mask", mask, old.shape[0])
    return torch.where(mask.reshape(-1, *(1,) * (old.ndim - 1)), moved, old)

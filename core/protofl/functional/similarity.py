"""Similarity of the prototypes of different clients."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape

Similarity = Literal["pearson", "spearman", "cka"]


def client_similarity(
    prototypes: Tensor, known: Tensor, kind: Literal["pearson", "spearman", "cka"] = "pearson"
) -> Tensor:
    """Return the similarity of each pair of clients' prototypes, over their common classes.

    ``pearson`` and ``spearman`` correlate all numbers of the shared rows, as they are or their
    ranks (ties share the mean one), so both clients' features have to mean the same. ``cka`` is the
    linear centred kernel alignment of Kornblith et al., "Similarity of Neural Network
    Representations Revisited" (ICML 2019), ‖YᵀX‖² / (‖XᵀX‖·‖YᵀY‖) of centred rows, which a
    rotation or a common factor of one client's features doesn't change: it compares how classes lie
    to each other in models that share no coordinates.

    Args:
        prototypes: [M, C, K]; unknown rows are not looked at.
        known: [M, C] bool, the classes that each client has.
        kind: ``pearson``, ``spearman`` or ``cka``.

    Returns:
        [M, M] float64, symmetric, from −1 to 1 (``cka`` from 0); NaN where two share no class
        (``cka``: fewer than three, as two rows are always alike), or the numbers of one are all
        the same.

    Raises:
        ValueError: A shape, dtype or ``kind`` is wrong.
    """
    check_shape("prototypes", prototypes, "M C K")
    check_floating(prototypes=prototypes)
    check_shape("known", known, "M C", M=prototypes.shape[0], C=prototypes.shape[1])
    if kind not in ("pearson", "spearman", "cka"):
        raise ValueError(f"kind must be 'pearson', 'spearman' or 'cka': got {kind!r}")
    count = prototypes.shape[0]
    found = torch.full((count, count), torch.nan, dtype=torch.float64)
    rows, masks = prototypes.detach().double().cpu(), known.cpu()
    for a in range(count):
        for b in range(a, count):
            shared = masks[a] & masks[b]
            x, y = rows[a][shared], rows[b][shared]
            if kind == "cka":
                value = _linear_cka(x, y)
            elif kind == "spearman":
                value = _correlation(_ranks(x.flatten()), _ranks(y.flatten()))
            else:
                value = _correlation(x.flatten(), y.flatten())
            found[a, b] = found[b, a] = value
    return found


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's r of two vectors; NaN for 0/0."""
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return torch.dot(x, y) / scale if scale > 0 else torch.tensor(torch.nan)


def _ranks(x: Tensor) -> Tensor:
    """The rank of each number, ties the mean of theirs."""
    _, which, counts = torch.unique(x, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    mean: Tensor = ends - (counts - 1) / 2
    return mean[which]


def _linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Linear CKA of rows of the same classes; NaN of fewer than three, or of one repeated."""
    if len(x) < 3:
        return torch.tensor(torch.nan)
    x, y = x - x.mean(0), y - y.mean(0)
    # By Gram matrices n×n of the few classes; ‖YᵀX‖² = ⟨XXᵀ, YYᵀ⟩.
    first, second = x @ x.T, y @ y.T
    scale = first.norm() * second.norm()
    return (first * second).sum() / scale if scale > 0 else torch.tensor(torch.nan)

"""Relations between classes: losses that compare Gram or distance matrices of two spaces."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofl.functional._checks import check_floating, check_mask, check_shape, result_dtype
from protofl.functional.distances import euclidean_distances


def structural_loss(
    x: Tensor,
    y: Tensor,
    known: Tensor,
    kind: Literal["cka", "rdm_cos", "gram_mse", "rdm_mse"] = "cka",
) -> Tensor:
    """S(X, Y), the difference of how rows lie to each other: FedSAF, as its published code has it.

    X and Y may have different widths. With G the Gram matrix of the rows less their mean, and D the
    Euclidean distances between rows:

    * ``cka``: 1 − ⟨G_X, G_Y⟩/(‖G_X‖·‖G_Y‖), linear centred kernel alignment.
    * ``rdm_cos``: 1 − cos of the upper triangles of D_X and D_Y.
    * ``gram_mse``: the mean of (G_X − G_Y)² over n² entries, of rows first scaled to length 1.
    * ``rdm_mse``: the mean of (D_X − D_Y)² over n² entries, in the squared unit of the features.

    The first two don't see a common factor of all rows, nor any difference of two rows alone.

    Args:
        x: X [C, K].
        y: Y [C, K′].
        known: [C] bool, the n rows to compare; the others are not looked at.
        kind: One of the four above.

    Returns:
        Scalar; 0 for n < 2.

    Raises:
        ValueError: A shape, dtype or ``kind`` is wrong.
    """
    check_shape("x", x, "C K")
    check_shape("y", y, "C K", C=x.shape[0])
    check_floating(x=x, y=y)
    check_mask("known", known, x.shape[0])
    if kind not in ("cka", "rdm_cos", "gram_mse", "rdm_mse"):
        raise ValueError(f"kind must be 'cka', 'rdm_cos', 'gram_mse' or 'rdm_mse': got {kind!r}")
    dtype, unknown, n = result_dtype(x, y), ~known.unsqueeze(1), known.sum()

    def relations(rows: Tensor) -> Tensor:
        """G or D [C, C], 0 where a row is unknown."""
        rows = rows.to(dtype).masked_fill(unknown, 0.0)
        if kind in ("cka", "gram_mse"):
            rows = normalize(rows, dim=1) if kind == "gram_mse" else rows
            rows = (rows - rows.sum(0) / n.clamp_min(1)).masked_fill(unknown, 0.0)
            return rows @ rows.T
        # Both triangles are equal, so their cosine is that of the upper ones.
        return euclidean_distances(rows, rows).to(dtype).masked_fill(unknown | unknown.T, 0.0)

    a, b = relations(x), relations(y)
    if kind in ("gram_mse", "rdm_mse"):
        found = (a - b).square().sum() / n.square().clamp_min(1)
    else:
        least = torch.finfo(dtype).tiny ** 0.5  # equal rows have no direction, and no gradient
        a, b = normalize(a.flatten(), dim=0, eps=least), normalize(b.flatten(), dim=0, eps=least)
        found = 1 - (a * b).sum()
    return found * (n > 1)

"""Compression of what travels."""

from __future__ import annotations

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape


def truncated_svd(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets that hold a share of the energy: FedKD (Wu et al., 2022).

    The rank is the smallest r ≥ 1 with Σ_{i≤r} σ_i² / Σ σ_i² above ``energy``. Waits for the
    device, as the shapes depend on the values.

    Args:
        matrix: [P, Q], such as the update of one parameter.
        energy: The threshold T between 0 and 1. 1, which no share exceeds, keeps the full rank;
            0 keeps one triplet.

    Returns:
        U [P, r], the singular values S [r] and Vh [r, Q], so that U·diag(S)·Vh approximates the
        matrix; r = 1 for a zero matrix.

    Raises:
        ValueError: The shape or dtype is wrong, the matrix is empty, or ``energy`` is outside
            0…1.
    """
    check_shape("matrix", matrix, "P Q")
    check_floating(matrix=matrix)
    if matrix.numel() == 0:
        raise ValueError(f"matrix must not be empty: got shape {list(matrix.shape)}")
    if not 0.0 <= energy <= 1.0:
        raise ValueError(f"energy must be between 0 and 1: got {energy}")
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # On the CPU, where every backend has float64: squares of small float32 values underflow.
    held = s.detach().cpu().double().square().cumsum(0)
    below = int((held <= energy * held[-1]).sum())
    # Full rank where no share exceeds the energy; of a zero matrix one triplet is enough.
    rank = min(below + 1, s.shape[0]) if held[-1] > 0 else 1
    return u[:, :rank], s[:rank], vh[:rank]

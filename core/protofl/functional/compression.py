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
        matrix; r = 1 for a zero matrix. The largest element of each column of U is positive.

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
    if matrix.dtype == torch.float32 and matrix.device.type != "mps":
        found = _by_eigenvalues(matrix, energy)
        if found is not None:
            return _signed(*found)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # On the CPU, where every backend has float64: squares of small float32 values underflow.
    rank = _rank(s.detach().cpu().double().square(), energy)
    return _signed(u[:, :rank], s[:rank], vh[:rank])


def _signed(u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each triplet with the sign that makes the largest element of its u positive."""
    largest = u.gather(0, u.detach().abs().argmax(0, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0).to(u.dtype)
    return u * sign, s, vh * sign.T


def _rank(squares: Tensor, energy: float) -> int:
    """The smallest rank whose share of the squared singular values, descending, exceeds T."""
    held = squares.cumsum(0)
    below = int((held <= energy * held[-1]).sum())
    # Full rank where no share exceeds the energy; of a zero matrix one triplet is enough.
    return min(below + 1, len(squares)) if held[-1] > 0 else 1


def _by_eigenvalues(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same by the eigenvalues of A·Aᵀ in float64, some six times faster for a wide matrix.

    Squaring costs half the digits, and float64 has twice those of float32. None where a singular
    value that is kept is below float32's resolution of the largest, as its vectors would be noise.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    A = (matrix if wide else matrix.T).double()
    values, vectors = torch.linalg.eigh(A @ A.T)
    squares = values.flip(0).clamp_min(0)
    rank = _rank(squares.detach().cpu(), energy)
    s = squares[:rank].sqrt()
    if not bool(s[-1] > torch.finfo(torch.float32).eps * s[0]):
        return None
    left = vectors.flip(1)[:, :rank]
    right = (left.T @ A) / s.unsqueeze(1)
    u, vh = (left, right) if wide else (right.T, left.T)
    return u.to(matrix.dtype), s.to(matrix.dtype), vh.to(matrix.dtype)

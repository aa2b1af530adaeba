"""Products B·A of thin factors, without the matrix that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Factors(NamedTuple):
    """ΔW = B·A of rank r.

    Attributes:
        b: B, [rows, r].
        a: A, [r, columns].
    """

    b: Tensor
    a: Tensor

    @property
    def rank(self) -> int:
        """The rank r."""
        return len(self.a)

    def cut(self, rank: int) -> Factors:
        """Return the first slices, as copies."""
        return Factors(self.b[:, :rank].contiguous(), self.a[:rank].clone())

    def times(self, factor: float) -> Factors:
        """Return the factors of a multiple of ΔW; the multiple is taken of B."""
        return self if factor == 1 else Factors(factor * self.b, self.a)

    def norm(self) -> Tensor:
        """Return ‖B·A‖_F, from the r × r matrices BᵀB and AAᵀ."""
        return ((self.b.T @ self.b) * (self.a @ self.a.T)).sum().clamp(min=0).sqrt()

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return U [rows, q], Σ [q] and V [q, columns] of B·A, q the least of rows, columns and r.

        B = Q_B·R_B and Aᵀ = Q_A·R_A, so B·A = Q_B·(R_B·R_Aᵀ)·Q_Aᵀ, and only the r × r matrix in the
        middle is decomposed.
        """
        Q_B, R_B = torch.linalg.qr(self.b)
        Q_A, R_A = torch.linalg.qr(self.a.T)
        U, S, V = torch.linalg.svd(R_B @ R_A.T, full_matrices=False)
        return Q_B @ U, S, V @ Q_A.T


def stack(factors: Sequence[Factors], weights: Sequence[Tensor]) -> Factors:
    """Return [B_1, B_2, …] and [w_1·A_1; w_2·A_2; …], whose product is Σ_i B_i·diag(w_i)·A_i.

    Args:
        factors: Of M clients, [rows, r_i] and [r_i, columns].
        weights: Of each client, [] or [r_i].
    """
    scaled = [w.reshape(-1, 1) * f.a for f, w in zip(factors, weights, strict=True)]
    return Factors(torch.cat([f.b for f in factors], 1), torch.cat(scaled))


def padded_mean(matrices: Sequence[Tensor], weights: Tensor, old: Tensor, dim: int) -> Tensor:
    """Return Σ_i w_i·X_i of matrices that are padded with zeros along a dimension.

    Args:
        matrices: The X_i of M clients, of r_i slices along ``dim``.
        weights: w_i, [M].
        old: The earlier result, of the largest rank of the run: slices that no client of the round
            has stay, as zeros in A and B could not be trained again.
        dim: 0 for A, [r_i, columns]; 1 for B, [rows, r_i].
    """
    here = max(matrix.shape[dim] for matrix in matrices)
    padded = [
        pad(X, (0, 0, 0, here - len(X)) if dim == 0 else (0, here - X.shape[1])) for X in matrices
    ]
    mean = torch.tensordot(weights, torch.stack(padded), 1)
    return torch.cat([mean, old.narrow(dim, here, old.shape[dim] - here)], dim)


def slice_weights(ranks: Sequence[int], p: Tensor) -> list[Tensor]:
    """Return p_i/(Σ_{j: r_j ≥ k} p_j) of each client's slices k = 1…r_i, [r_i] of each.

    Args:
        ranks: r_i of M clients.
        p: p_i, [M].
    """
    present = torch.tensor(ranks, device=p.device)
    has = torch.arange(max(ranks), device=p.device) < present.unsqueeze(1)  # M × k
    share = has * p.unsqueeze(1)
    share = share / share.sum(0)
    return [row[:rank] for row, rank in zip(share, ranks, strict=True)]


def best_of_rank(product: Factors, fresh: Tensor) -> Factors:
    """Return U·Σ and V of the r largest singular values of B·A, the nearest product of rank r.

    Args:
        product: B·A.
        fresh: Rows [r, columns] that A has instead of V where B·A has fewer than r singular values;
            there B is 0.
    """
    U, S, V = product.svd()
    rank, available = len(fresh), min(len(fresh), len(S))
    b = (U * S)[:, :available]
    return Factors(
        pad(b, (0, rank - available)),
        torch.cat([V[:available], fresh[available:]]),
    )

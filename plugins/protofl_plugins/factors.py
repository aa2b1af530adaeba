"""Tensors that travel as the factors of a truncated SVD, as FedKD sends them.

``PREFIX/NAME/u``, ``s`` and ``vh`` are the factors of a tensor, ``PREFIX/NAME`` is one that travels
whole. A tensor is seen as one matrix, out × (in·k·k) where it is a convolution's; or, with
``kernels``, a convolution as out·in matrices k × k that share one rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F

PARTS = ("u", "s", "vh")


def compress(
    tensors: Mapping[str, Tensor], prefix: str, energy: float, *, kernels: bool = False
) -> pf.Payload:
    """U, Σ, V of each tensor, truncated at an energy (`protofl.functional.truncated_svd`).

    Args:
        tensors: Parameters or their updates, by name.
        prefix: Of the names in the payload.
        energy: T between 0 and 1.
        kernels: See a convolution as its kernels.
    """
    payload = pf.Payload()
    for name, tensor in tensors.items():
        key, matrix = f"{prefix}/{name}", _matrix(tensor, kernels)
        if matrix is None:
            payload[key] = tensor
            continue
        # An SVD of NaN fails; factors of NaN are refused where every upload is checked for it.
        finite = bool(torch.isfinite(matrix).all())
        factors = F.truncated_svd(matrix, energy) if finite else _lost(matrix)
        # The layout that they have after the wire: rounding depends on it.
        for part, factor in zip(PARTS, factors, strict=True):
            payload[f"{key}/{part}"] = factor.contiguous()
    return payload


def rebuild(
    payload: pf.Payload, prefix: str, like: Mapping[str, Tensor], *, kernels: bool = False
) -> dict[str, Tensor]:
    """U Σ V in the names and shapes of ``like``."""
    rebuilt = {}
    for name, tensor in like.items():
        key = f"{prefix}/{name}"
        if _matrix(tensor, kernels) is None:
            rebuilt[name] = payload[key]
        else:
            u, s, vh = (payload[f"{key}/{part}"] for part in PARTS)
            rebuilt[name] = ((u * s.unsqueeze(-2)) @ vh).view_as(tensor)
    return rebuilt


def _lost(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of rank 1 that hold NaN."""
    *lead, rows, columns = matrix.shape
    sizes = (*lead, rows, 1), (*lead, 1), (*lead, 1, columns)
    u, s, vh = (matrix.new_full(size, torch.nan) for size in sizes)
    return u, s, vh


def _matrix(tensor: Tensor, kernels: bool) -> Tensor | None:
    """Return the matrix for the SVD; None for one dimension, or kernels of a single number."""
    if tensor.dim() < 2:
        return None
    if kernels and tensor.dim() == 4:
        return tensor if tensor[0, 0].numel() > 1 else None
    return tensor.reshape(len(tensor), -1)

"""The simplex equiangular tight frame: fixed points of classes, spread evenly on a sphere."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def simplex_etf(num_classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """V = √(C/(C−1)) · U (I − 11ᵀ/C), UᵀU = I: FedKTL, section 3.3.2.

    U is the orthonormal factor of a Gaussian matrix, with the signs that make it unique, so the
    same generator gives the same V on every client.

    Args:
        num_classes: C, at least 2.
        dim: The dimension of the ETF space, FedKTL's K. UᵀU = I needs K ≥ C, although the text
            says K ≥ C − 1.
        generator: The source of U; V lies on its device.

    Returns:
        [dim, C] in torch's default dtype: unit columns with pairwise cosine −1/(C − 1).

    Raises:
        ValueError: ``num_classes`` is below 2, or ``dim`` is below ``num_classes``.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2: got {num_classes}")
    if dim < num_classes:
        raise ValueError(f"dim must be at least num_classes = {num_classes}: got {dim}")
    normal = torch.randn(
        dim, num_classes, generator=generator, device=generator.device, dtype=torch.float64
    )
    q, r = torch.linalg.qr(normal)
    u: Tensor = q * r.diagonal().sign()
    # U (I − 11ᵀ/C) takes the mean column off every column.
    v = math.sqrt(num_classes / (num_classes - 1)) * (u - u.mean(1, keepdim=True))
    return v.to(torch.get_default_dtype())

"""Fixed points on the unit sphere, the simplex ETF, and losses towards them: FedKTL, AlignFed."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import (
    check_classes,
    check_floating,
    check_labels,
    check_shape,
    result_dtype,
)
from protofl.functional.prototypes import class_means


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


def arcface_loss(
    cosines: Tensor, labels: Tensor, scale: float = 64.0, margin: float = 0.5
) -> Tensor:
    """The ArcFace loss: FedKTL Eq. 1; scale 1 and margin 0 give its Eq. 6.

    With a = cos(θ_y + m), a row of class y costs −log(e^{s·a} / (e^{s·a} + Σ_{c≠y} e^{s·cos θ_c})).
    Taken as printed: beyond θ_y = π − m, a rises again with θ_y.

    Args:
        cosines: [N, C], cos θ_c between a projected feature and each column of the ETF; clamped
            to ±(1 − 1e-7), where the gradient of arccos is still finite.
        labels: [N] integers in 0…C−1.
        scale: s, without unit.
        margin: m, in radians.

    Returns:
        Scalar: the mean over N; 0 where N = 0.

    Raises:
        ValueError: A shape or dtype is wrong, or ``scale`` is not positive.
    """
    check_shape("cosines", cosines, "N C")
    check_floating(cosines=cosines)
    check_labels("labels", labels, cosines.shape[0])
    if not scale > 0:
        raise ValueError(f"scale must be positive: got {scale}")
    labels = labels.long()
    cosines = cosines.to(result_dtype(cosines)).clamp(-(1 - 1e-7), 1 - 1e-7)
    own = labels.unsqueeze(1) == torch.arange(cosines.shape[1], device=labels.device)
    scores = scale * torch.where(own, (cosines.acos() + margin).cos(), cosines)
    return F.cross_entropy(scores, labels, reduction="sum") / max(cosines.shape[0], 1)


def fixed_point_loss(
    features: Tensor,
    labels: Tensor,
    points: Tensor,
    over: Literal["batch", "classes"] = "batch",
) -> Tensor:
    """ℓ_v = −1/C·Σ_c mean over the samples x of class c of log p^c(x): AlignFed.

    p is the softmax of cos(f(x), v^c), temperature 1, over the samples of the batch or over the
    points. A class without samples adds 0.

    Args:
        features: f(x) [N, K].
        labels: [N] integers in 0…C−1.
        points: v [C, K]; scaled to length 1.
        over: ``batch`` (the published code) or ``classes``.

    Returns:
        Scalar, without unit; 0 where N = 0.

    Raises:
        ValueError: A shape, dtype or ``over`` is wrong.
    """
    check_classes(features, points)
    check_labels("labels", labels, features.shape[0])
    if over not in ("batch", "classes"):
        raise ValueError(f"over must be 'batch' or 'classes': got {over!r}")
    dtype, labels = result_dtype(features, points), labels.long()
    cosines = F.normalize(features.to(dtype), dim=1) @ F.normalize(points.to(dtype), dim=1).T
    likely = F.log_softmax(cosines, 0 if over == "batch" else 1)
    means, _ = class_means(likely.gather(1, labels.unsqueeze(1)), labels, points.shape[0])
    return -means.mean()

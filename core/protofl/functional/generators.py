"""Losses of a generator of features that learns from clients' heads: FedGen."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from protofl.functional._checks import check_floating, check_labels, check_shape, result_dtype


def ensemble_loss(
    logits: Tensor, labels: Tensor, shares: Tensor, of: Literal["logits", "losses"] = "logits"
) -> Tensor:
    """Return the loss of the clients' averaged heads on generated features: FedGen.

    ``logits``: ℓ(Σ_i w_i·h_i(z), y), the loss of the weighted mean logits. ``losses``:
    Σ_i w_i·ℓ(h_i(z), y), the weighted mean of the heads' losses, as in the original's code. ℓ is
    the cross-entropy.

    Args:
        logits: [M, N, C], h_i(z) of M heads on N generated features.
        labels: [N] integers in 0…C−1, the classes asked for.
        shares: [M, N], w_i of each label.
        of: ``"logits"`` or ``"losses"``.

    Returns:
        Scalar, the mean over the labels.

    Raises:
        ValueError: A shape or dtype is wrong, or ``of`` is neither of the two.
    """
    check_shape("logits", logits, "M N C")
    M, N, C = logits.shape
    check_labels("labels", labels, N)
    check_shape("shares", shares, "M N", M=M, N=N)
    check_floating(logits=logits, shares=shares)
    if of not in ("logits", "losses"):
        raise ValueError(f"of must be 'logits' or 'losses': got {of!r}")
    dtype, y = result_dtype(logits, shares), labels.long()
    z, w = logits.to(dtype), shares.to(dtype)
    if of == "logits":
        return F.cross_entropy((w.unsqueeze(2) * z).sum(0), y)
    losses = F.cross_entropy(z.reshape(M * N, C), y.repeat(M), reduction="none")
    return (w * losses.view(M, N)).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """exp(−mean over pairs of MSE(ε_j, ε_k)·MAE(z_j, z_k)): other noise, other features. FedGen.

    Both distances are means over the entries. With norms in their place the exponent grows with
    the widths and the loss is 0 from the start, and so is its gradient. The mean is over all N²
    ordered pairs, a row with itself included.

    Args:
        noise: ε [N, n].
        features: z [N, K], what was generated from it.

    Returns:
        Scalar in (0, 1]; 1 where all features are alike.

    Raises:
        ValueError: A shape or dtype is wrong, or there is no row.
    """
    check_shape("noise", noise, "N n")
    check_shape("features", features, "N K", N=noise.shape[0])
    check_floating(noise=noise, features=features)
    if 0 in (*noise.shape, *features.shape):
        raise ValueError(
            f"noise and features need a row and a column: got shapes {list(noise.shape)} and "
            f"{list(features.shape)}"
        )
    dtype = result_dtype(noise, features)
    e, z = noise.to(dtype), features.to(dtype)
    apart = (e.unsqueeze(1) - e).square().mean(2) * (z.unsqueeze(1) - z).abs().mean(2)
    return (-apart.mean()).exp()

"""Uploads of colluding malicious clients: ALIE."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor

from protofl.functional._checks import check_floating, check_shape, result_dtype


def alie_z(clients: int, malicious: int) -> float:
    """z_max of "A Little Is Enough" (Baruch et al., NeurIPS 2019, Algorithm 3).

    Φ(z) = (n − m − s)/(n − m) with s = ⌊n/2 + 1⌋ − m: the malicious need s honest ones on their
    side of z to look like the majority. It is 0 where more than half of the honest would do, and s
    is at least 1 where the malicious are a majority already.

    Args:
        clients: n, clients of the round.
        malicious: m of them.

    Raises:
        ValueError: ``malicious`` is negative or above ``clients``.
    """
    if not 0 <= malicious <= clients:
        raise ValueError(f"malicious must be between 0 and {clients}: got {malicious}")
    honest = clients - malicious
    if honest == 0:
        return 0.0
    share = (honest - max(1, clients // 2 + 1 - malicious)) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


def alie_rows(rows: Tensor, present: Tensor, z: float) -> Tensor:
    """μ − z·σ of every class, coordinate by coordinate (Baruch et al., 2019, Algorithm 3).

    Args:
        rows: [M, C, K] of the clients that are known; absent rows are not looked at.
        present: [M, C] bool.
        z: How far from the mean.

    Returns:
        [C, K], with σ the deviation of all known values (divided by their number); 0 where no
        client has the class.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("rows", rows, "M C K")
    check_floating(rows=rows)
    check_shape("present", present, "M C", M=rows.shape[0], C=rows.shape[1])
    mask = present.unsqueeze(2)
    values = rows.to(result_dtype(rows)).masked_fill(~mask, 0.0)
    count = mask.sum(0).clamp(min=1)
    mean = values.sum(0) / count
    variance = ((values - mean).square() * mask).sum(0) / count
    return mean - z * variance.sqrt()

"""Robust means: one prototype of every class from clients of which some may be malicious.

Every function takes the prototypes of M clients as one tensor [M, C, K] with the mask ``present``
[M, C] of the rows that are there, whose number n_c differs from class to class. What absent rows
hold is not looked at.

Rules that leave rows out, or cut values off, expect at most f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋)
of n_c clients to be malicious (`minority`): the rounding up makes a class with few clients count
on one, and a majority is always believed. `alie_rows` is an attack on such rules.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape, result_dtype

_LEAST = torch.finfo(torch.float64).tiny
"""The smallest divisor, as a sum may be 0."""


def minority(counts: Tensor, share: float) -> Tensor:
    """f_c, how many of n_c clients may be malicious: min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋).

    Args:
        counts: n_c, integers of any shape.
        share: The share that is expected to be malicious, 0…1.

    Returns:
        f_c, int64 of the same shape; 0 for classes that no client has.

    Raises:
        ValueError: ``share`` is outside 0…1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be between 0 and 1: got {share}")
    up = (counts.double() * share - 1e-9).ceil().long()  # 0.1·30 is a little above 3
    return torch.minimum(up, (counts.long() - 1) // 2).clamp(min=0)


def coordinate_median(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """The median of every coordinate (Yin et al., ICML 2018, Definition 1).

    Of an even number of values it is the mean of the two in the middle.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.

    Returns:
        The medians [C, K], 0 where no client has the class, and known [C] bool.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    values, counts = _sorted(prototypes, present)
    last = (counts - 1).clamp(min=0)
    places = torch.stack([last // 2, (last + 1) // 2])
    middle = values.gather(0, places.unsqueeze(2).expand(-1, -1, values.shape[2]))
    return _known(middle.mean(0), counts)


def trimmed_mean(prototypes: Tensor, present: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The mean of every coordinate without its f_c smallest and f_c largest values.

    Yin et al., ICML 2018, Definition 2, with f_c values cut off on each side (`minority`).

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        share: Share of clients that is expected to be malicious; 0 is the mean.

    Returns:
        The means [C, K], 0 where no client has the class, and known [C] bool.

    Raises:
        ValueError: A shape or dtype is wrong, or ``share`` is outside 0…1.
    """
    values, counts = _sorted(prototypes, present)
    cut = minority(counts, share)
    place = torch.arange(len(values), device=values.device).unsqueeze(1)
    inside = ((place >= cut) & (place < counts - cut)).unsqueeze(2)
    sums = values.masked_fill(~inside, 0.0).sum(0)
    return _known(sums / (counts - 2 * cut).clamp(min=1).unsqueeze(1), counts)


def geometric_median(
    prototypes: Tensor, present: Tensor, tolerance: float = 1e-7, iterations: int = 1000
) -> tuple[Tensor, Tensor]:
    """The point with the smallest sum of distances to a class's prototypes.

    By Weiszfeld's iteration with the step of Vardi and Zhang (PNAS 2000) for an iterate that lies
    on a prototype, from the coordinate-wise median, in double precision; as a rule for federated
    learning Pillutla et al., "Robust Aggregation for Federated Learning" (IEEE TSP 2022). With T
    the mean weighted by the inverse distances, η prototypes at y itself and r the length of the
    sum of unit vectors to the others,

        y ← (1 − min(1, η/r))·T + min(1, η/r)·y

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        tolerance: It ends when no class's point moves by more than this share of the median of the
            distances to it, which a few far prototypes don't change.
        iterations: It ends after so many in any case.

    Returns:
        The medians [C, K], 0 where no client has the class, and known [C] bool.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    _check(prototypes, present)
    mask, counts = present.unsqueeze(2), present.sum(0)
    points = prototypes.double().masked_fill(~mask, 0.0)
    y, _ = coordinate_median(points, present)
    middle = ((counts - 1).clamp(min=0) // 2).reshape(1, -1, 1)
    for _ in range(iterations):
        towards = (points - y).masked_fill(~mask, 0.0)
        distance = towards.norm(dim=2, keepdim=True)
        ordered = distance.masked_fill(~mask, torch.inf).sort(dim=0).values
        spread = ordered.gather(0, middle).squeeze(0)
        at_point = mask & (distance <= 1e-12 * spread)
        weight = torch.where(mask & ~at_point, 1.0 / distance, 0.0)
        pull = (weight * towards).sum(0)
        stays = at_point.sum(0) / pull.norm(dim=1, keepdim=True).clamp(min=_LEAST)
        step = (1 - stays.clamp(max=1)) * pull / weight.sum(0).clamp(min=_LEAST)
        y = y + step
        if bool((step.norm(dim=1, keepdim=True) <= tolerance * spread).all()):
            break
    return _known(y.to(result_dtype(prototypes)), counts)


def multi_krum(prototypes: Tensor, present: Tensor, share: float) -> Tensor:
    """The rows of every class that Multi-Krum keeps.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
    (NeurIPS 2017): a row's score is the sum of its squared distances to its n_c − f_c − 2 nearest
    others, of which there is at least one taken; the n_c − f_c rows with the smallest scores stay,
    of equal ones those of earlier clients.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        share: Share of clients that is expected to be malicious; 0 keeps all.

    Returns:
        The kept rows, [M, C] bool.

    Raises:
        ValueError: A shape or dtype is wrong, or ``share`` is outside 0…1.
    """
    _check(prototypes, present)
    counts = present.sum(0)
    hostile = minority(counts, share)
    rows = prototypes.double().masked_fill(~present.unsqueeze(2), 0.0).transpose(0, 1)
    squared = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    there = present.T
    pairs = there.unsqueeze(1) & there.unsqueeze(2)
    itself = torch.eye(len(prototypes), dtype=torch.bool, device=rows.device)
    nearest = squared.masked_fill(~pairs | itself, torch.inf).sort(dim=2).values  # [C, M, M]
    neighbours = (counts - hostile - 2).clamp(min=1).minimum(counts - 1)
    place = torch.arange(len(prototypes), device=rows.device)
    taken = (place < neighbours.unsqueeze(1)).unsqueeze(1)
    scores = nearest.masked_fill(~taken, 0.0).sum(2).clamp(max=torch.finfo(nearest.dtype).max)
    scores = scores.masked_fill(~there, torch.inf)
    rank = scores.argsort(dim=1, stable=True).argsort(dim=1)
    return ((rank < (counts - hostile).unsqueeze(1)) & there).T


def cosine_filter(prototypes: Tensor, present: Tensor, least: float) -> Tensor:
    """The rows of every class whose angle to the class's coordinate-wise median is small.

    Kept is P_i^c where cos(P_i^c, med^c) ≥ ``least``. FLTrust (Cao et al., NDSS 2021) compares with
    an update of the server's own data; a server without data takes the median (`coordinate_median`)
    in its place. The row with the largest cosine always stays. Lengths are not looked at.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        least: The smallest cosine, −1…1; −1 keeps all.

    Returns:
        The kept rows, [M, C] bool.

    Raises:
        ValueError: A shape or dtype is wrong, or ``least`` is outside −1…1.
    """
    if not -1.0 <= least <= 1.0:
        raise ValueError(f"least must be between -1 and 1: got {least}")
    median, _ = coordinate_median(prototypes, present)
    rows = prototypes.to(median.dtype).masked_fill(~present.unsqueeze(2), 0.0)
    cosine = torch.cosine_similarity(rows, median.unsqueeze(0), dim=2)
    cosine = cosine.masked_fill(~present, -torch.inf)
    return ((cosine >= least) | (cosine == cosine.amax(0))) & present


def _check(prototypes: Tensor, present: Tensor) -> None:
    check_shape("prototypes", prototypes, "M C K")
    check_floating(prototypes=prototypes)
    check_shape("present", present, "M C", M=prototypes.shape[0], C=prototypes.shape[1])
    if present.dtype != torch.bool:
        raise ValueError(f"present must be bool: got {present.dtype}")


def _sorted(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Every coordinate's values in ascending order, absent ones last as infinity, and n_c."""
    _check(prototypes, present)
    rows = prototypes.to(result_dtype(prototypes))
    values = rows.masked_fill(~present.unsqueeze(2), torch.inf).sort(dim=0).values
    return values, present.sum(0)


def _known(found: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of classes that somebody has, 0 elsewhere, and the mask of these classes."""
    known = counts > 0
    return found.masked_fill(~known.unsqueeze(1), 0.0), known


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

"""Compression of payloads: truncated SVD, the largest entries, and fewer bits a number."""

from __future__ import annotations

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape


def truncated_svd(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets that hold a share of the energy: FedKD (Wu et al., 2022).

    The rank is the smallest r ≥ 1 with Σ_{i≤r} σ_i² / Σ σ_i² above ``energy``. Waits for the
    device, as the shapes depend on the values.

    Args:
        matrix: [P, Q], such as the update of one parameter; or [*, P, Q], many small ones, such
            as the kernels of a convolution. These share one rank, by the sums of their σ_i².
        energy: The threshold T between 0 and 1. 1, which no share exceeds, keeps the full rank;
            0 keeps one triplet.

    Returns:
        U [*, P, r], the singular values S [*, r] and Vh [*, r, Q], so that U·diag(S)·Vh
        approximates each matrix; r = 1 for zero matrices. The largest element of each column of
        U is positive.

    Raises:
        ValueError: The shape or dtype is wrong, the matrix is empty, or ``energy`` is outside
            0…1.
    """
    if matrix.dim() < 3:
        check_shape("matrix", matrix, "P Q")
    check_floating(matrix=matrix)
    if matrix.numel() == 0:
        raise ValueError(f"matrix must not be empty: got shape {list(matrix.shape)}")
    if not 0.0 <= energy <= 1.0:
        raise ValueError(f"energy must be between 0 and 1: got {energy}")
    if matrix.dim() > 2:
        return _of_many(matrix, energy)
    if matrix.dtype == torch.float32 and matrix.device.type != "mps":
        wide = matrix.shape[0] <= matrix.shape[1]
        A = (matrix if wide else matrix.T).double()
        found = _by_lanczos(A, energy) or _by_eigenvalues(A, energy)
        # Below float32's resolution of the largest, a singular value's vectors would be noise.
        if found is not None and found[1][-1] > torch.finfo(torch.float32).eps * found[1][0]:
            left, s, right = (part.to(matrix.dtype) for part in found)
            return _signed(*((left, s, right) if wide else (right.T, s, left.T)))
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # On the CPU, where every backend has float64: squares of small float32 values underflow.
    rank = _rank(s.detach().cpu().double().square(), energy)
    return _signed(u[:, :rank], s[:rank], vh[:rank])


def _of_many(matrices: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same of all matrices at once, with one rank for all."""
    wide = matrices if matrices.device.type == "mps" else matrices.double()
    u, s, vh = torch.linalg.svd(wide, full_matrices=False)
    squares = s.detach().flatten(0, -2).cpu().double().square().sum(0)
    rank = _rank(squares, energy)
    u, s, vh = u[..., :rank], s[..., :rank], vh[..., :rank, :]
    return _signed(*(part.to(matrices.dtype) for part in (u, s, vh)))


def _signed(u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each triplet with the sign that makes the largest element of its u positive."""
    largest = u.gather(-2, u.detach().abs().argmax(-2, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0).to(u.dtype)
    return u * sign, s, vh * sign.mT


def _rank(squares: Tensor, energy: float) -> int:
    """The smallest rank whose share of the squared singular values, descending, exceeds T."""
    held = squares.cumsum(0)
    below = int((held <= energy * held[-1]).sum())
    # Full rank where no share exceeds the energy; of a zero matrix one triplet is enough.
    return min(below + 1, len(squares)) if held[-1] > 0 else 1


BLOCK = 12
"""Rows by which Lanczos' basis grows; a multiple of four is fastest for matrix products."""


def _by_lanczos(A: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same by block Lanczos, for the few leading triplets of a large matrix A [P, Q], P ≤ Q.

    Updates of a round have low rank: 8 of 512 triplets hold 95 % of the energy of a layer's, and
    are found some seven times faster than all of them. The basis, of rows in float64, is
    orthogonalised anew against all its rows (Golub and Van Loan, Matrix Computations, 10.3.6 and
    10.4). It is done when what is left of ‖A·Aᵀ·u − σ²·u‖/σ is below float32's resolution of the
    largest σ for each triplet.

    Returns:
        The triplets in float64, or None where A is small or too much of its rank is wanted.
    """
    most = A.shape[0] // 4
    if most < 2 * BLOCK or energy >= 1.0:
        return None
    wanted = energy * torch.linalg.vector_norm(A).square()
    # The start must have a part of every triplet: random, and the same each time.
    start = torch.randn(
        BLOCK, A.shape[1], generator=torch.Generator().manual_seed(0), dtype=A.dtype
    )
    Q, P = A.new_empty(0, A.shape[0]), A.new_empty(0, A.shape[1])  # P = Q·A
    rest, held = start.to(A.device) @ A.T, 0.0
    while len(Q) + BLOCK <= most:
        fresh = rest
        for _ in range(2):  # what is little but rounding still holds much of Q after the first
            fresh = torch.linalg.qr((fresh - (fresh @ Q.T) @ Q).T).Q.T.contiguous()
        Q, P = torch.cat((Q, fresh)), torch.cat((P, fresh @ A))
        rest = P[-BLOCK:] @ A.T
        rest = rest - (rest @ Q.T) @ Q
        squares, W = (part.flip(-1) for part in torch.linalg.eigh(P @ P.T))
        before, held = held, float(squares.detach().sum())
        if held <= wanted:
            grows = (held - before) * ((most - len(Q)) // BLOCK)
            if before and held + grows < wanted:
                return None
            continue
        rank = int((squares.cumsum(0) <= wanted).sum()) + 1
        s, W = squares[:rank].sqrt(), W[:, :rank].T.contiguous()
        left_over = torch.linalg.vector_norm(W[:, -BLOCK:] @ rest, dim=1) / s
        if bool((left_over <= torch.finfo(torch.float32).eps * s[0]).all()):
            return (W @ Q).T, s, (W @ P) / s.unsqueeze(1)
    return None


def _by_eigenvalues(A: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same by the eigenvalues of A·Aᵀ, some six times faster than the SVD of a wide matrix.

    Squaring costs half the digits, and float64 has twice those of float32. None where no vector
    can be had of a singular value.
    """
    values, vectors = torch.linalg.eigh(A @ A.T)
    squares = values.flip(0).clamp_min(0)
    s = squares[: _rank(squares.detach().cpu(), energy)].sqrt()
    left = vectors.flip(1)[:, : len(s)]
    return (left, s, (left.T @ A) / s.unsqueeze(1)) if bool(s[-1] > 0) else None


LEVELS = 127
"""The largest number of `quantise_int8`; −128 is not used, so that zero stays in the middle."""

HALVES = (torch.float16, torch.bfloat16)
"""Types of `round_to_half`."""


def index_type(length: int) -> torch.dtype:
    """The smallest integer type that holds 0…length−1, of those that torch computes with.

    Args:
        length: How many numbers there are.

    Returns:
        uint8, int16, int32 or int64.
    """
    sizes = {torch.uint8: 1 << 8, torch.int16: 1 << 15, torch.int32: 1 << 31}
    return next((dtype for dtype, end in sizes.items() if length <= end), torch.int64)


def largest_entries(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The entries of each row that are largest in size, Top_k of Stich et al. (2018), Def. 2.1.

    Top_k(v)_j = v_j where |v_j| is among the k largest, else 0, so that
    ‖v − Top_k(v)‖² ≤ (1 − k/d)·‖v‖². Which of equal sizes are taken is not said.

    Args:
        rows: [N, d].
        count: k, from 1 to d.

    Returns:
        The entries [N, k] and their places [N, k], ascending in each row, in `index_type` of d.

    Raises:
        ValueError: The shape or dtype is wrong, or ``count`` is outside 1…d.
    """
    check_shape("rows", rows, "N d")
    check_floating(rows=rows)
    if not 1 <= count <= rows.shape[1]:
        raise ValueError(f"count must be from 1 to {rows.shape[1]}: got {count}")
    places = rows.abs().topk(count, dim=1, sorted=False).indices.sort(dim=1).values
    return rows.gather(1, places), places.to(index_type(rows.shape[1]))


def with_entries(entries: Tensor, places: Tensor, length: int) -> Tensor:
    """Rows [N, d] that hold entries at their places and zero elsewhere; waits for the device.

    Args:
        entries: [N, k].
        places: [N, k], ascending in each row, as `largest_entries` gives them.
        length: d.

    Raises:
        ValueError: The shapes differ, the type of the places is not `index_type` of d, or they do
            not ascend from 0 to d−1.
    """
    check_shape("entries", entries, "N k")
    check_shape("places", places, "N k", N=entries.shape[0], k=entries.shape[1])
    if places.dtype != index_type(length):
        raise ValueError(f"places must be {index_type(length)}: got {places.dtype}")
    at = places.long()
    if at.numel():
        low, high = int(at.min()), int(at.max())
        if low < 0 or high >= length:
            wrong = low if low < 0 else high
            raise ValueError(f"places must be from 0 to {length - 1}: got {wrong}")
        if bool((at[:, 1:] <= at[:, :-1]).any()):
            raise ValueError("places must ascend in each row")
    return entries.new_zeros(len(entries), length).scatter(1, at, entries)


def quantise_int8(rows: Tensor, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rows as integers of 8 bits and a scale each, symmetric around zero.

    s = max_j |v_j| / 127, q_j = round(v_j / s): Jacob et al. (2018), Eq. 1 with zero point 0; then
    |v_j − s·q_j| ≤ s/2. With u ~ U[0, 1), q_j = ⌊v_j / s + u_j⌋, whose mean is v_j / s (the
    stochastic rounding of QSGD, Alistarh et al. 2017, section 3.1); then |v_j − s·q_j| < s.

    Args:
        rows: [N, d], finite.
        uniform: u [N, d] for stochastic rounding; None rounds to the nearest.

    Returns:
        q [N, d] int8 in −127…127, and s [N] float32, 0 for a row of zeros.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_shape("rows", rows, "N d")
    check_floating(rows=rows)
    v = rows.to(torch.promote_types(rows.dtype, torch.float32))
    # Dividing first keeps the largest float32 finite.
    scale = v.abs().amax(1).div(LEVELS).float() if v.shape[1] else v.new_zeros(len(v)).float()
    divided = v / torch.where(scale > 0, scale, 1).to(v.dtype).unsqueeze(1)
    if uniform is None:
        whole = divided.round()
    else:
        check_shape("uniform", uniform, "N d", N=len(v), d=v.shape[1])
        whole = (divided + uniform.to(divided)).floor()
    return whole.clamp(-LEVELS, LEVELS).to(torch.int8), scale


def dequantise_int8(integers: Tensor, scale: Tensor) -> Tensor:
    """s·q of `quantise_int8`, [N, d] float32.

    Args:
        integers: q [N, d] int8.
        scale: s [N] float32.

    Raises:
        ValueError: A shape or dtype is wrong, or a scale is negative or not finite.
    """
    check_shape("integers", integers, "N d")
    check_shape("scale", scale, "N", N=len(integers))
    if integers.dtype != torch.int8 or scale.dtype != torch.float32:
        raise ValueError(f"int8 and float32 are wanted: got {integers.dtype} and {scale.dtype}")
    if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
        raise ValueError("scale must be finite and not negative")
    return integers.float() * scale.unsqueeze(1)


def round_to_half(tensor: Tensor, dtype: torch.dtype, uniform: Tensor | None = None) -> Tensor:
    """A tensor in 16 bits; what is larger than the type can hold becomes its largest number.

    With u ~ U[0, 1) one of the two neighbours a ≤ v ≤ b in the type is taken, b with probability
    (v − a)/(b − a), so that the mean is v (stochastic rounding: Gupta et al. 2015, section 3).

    Args:
        tensor: Finite numbers.
        dtype: ``torch.float16`` or ``torch.bfloat16``.
        uniform: u, of the tensor's shape; None rounds to the nearest.

    Raises:
        ValueError: A shape or dtype is wrong.
    """
    check_floating(tensor=tensor)
    if dtype not in HALVES:
        raise ValueError(f"dtype must be float16 or bfloat16: got {dtype}")
    v = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    v = v.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    near = v.to(dtype)
    if uniform is None:
        return near
    if uniform.shape != tensor.shape:
        raise ValueError(f"uniform must be {list(tensor.shape)}: got {list(uniform.shape)}")
    # The last number of the type that is not above v, and the next one.
    order = _in_order(near.view(torch.int16).int()) - (near.to(v.dtype) > v).int()
    a, b = (_in_order(place).to(torch.int16).view(dtype) for place in (order, order + 1))
    share = (v - a.to(v.dtype)) / (b.to(v.dtype) - a.to(v.dtype))
    return torch.where(uniform.to(v.dtype) < share, b, a)


def _in_order(bits: Tensor) -> Tensor:
    """Bits of 16-bit numbers as integers that count upwards through both signs; and back."""
    return torch.where(bits < 0, torch.iinfo(torch.int16).min - bits, bits)

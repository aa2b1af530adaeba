"""Encodings of what travels: the largest entries alone, and fewer bits a number."""

from __future__ import annotations

import torch
from torch import Tensor

from protofl.functional._checks import check_floating, check_shape

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

"""Tests of largest entries, 8-bit and 16-bit numbers against slow loops over plain numbers."""

from __future__ import annotations

import struct

import pytest
import torch

from protofl_plugins.payload_transforms.quantise import (
    dequantise_int8,
    quantise_int8,
    round_to_half,
)
from protofl_plugins.payload_transforms.top_k import index_type, largest_entries, with_entries


def rows_of(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def uniform_of(rows, seed=1):
    return torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed))


# --- the largest entries --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (7, 3), (300, 1), (300, 300)])
def test_the_largest_entries_of_each_row(d, k, dtype):
    rows = rows_of(4, d, dtype=dtype)
    entries, places = largest_entries(rows, k)
    for row, found, where in zip(rows.tolist(), entries.tolist(), places.tolist(), strict=True):
        best = sorted(range(d), key=lambda j: -abs(row[j]))[:k]
        assert where == sorted(best)
        assert found == [row[j] for j in where]
    dense = with_entries(entries, places, d)
    assert dense.dtype == dtype
    for row, seen, where in zip(rows.tolist(), dense.tolist(), places.tolist(), strict=True):
        assert seen == [value if j in where else 0 for j, value in enumerate(row)]


def test_equal_entries_and_zeros():
    for rows in (torch.zeros(2, 5), torch.tensor([[1.0, -1, 1, -1, 1], [0, 0, 2, 0, -2]])):
        entries, places = largest_entries(rows, 3)
        assert all(len({*row}) == 3 and row == sorted(row) for row in places.tolist())
        assert torch.equal(rows.gather(1, places.long()), entries)


def test_what_is_left_out_is_at_most_its_share():
    """‖v − Top_k(v)‖² ≤ (1 − k/d)·‖v‖², Stich et al., Def. 2.1."""
    rows = rows_of(50, 20)
    for k in (1, 5, 19, 20):
        left = rows - with_entries(*largest_entries(rows, k), 20)
        assert (left.square().sum(1) <= (1 - k / 20) * rows.square().sum(1) + 1e-6).all()


@pytest.mark.parametrize(
    ("length", "dtype"),
    [
        (1, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (1 << 15, torch.int16),
        ((1 << 15) + 1, torch.int32),
        (1 << 31, torch.int32),
        ((1 << 31) + 1, torch.int64),
    ],
)
def test_the_smallest_type_of_places(length, dtype):
    assert index_type(length) == dtype
    assert int(torch.tensor(length - 1).to(dtype)) == length - 1


def test_the_last_place_of_each_type_comes_back():
    for length in (256, 257, 1 << 15, (1 << 15) + 1):
        rows = torch.zeros(1, length)
        rows[0, -1] = 1
        assert torch.equal(with_entries(*largest_entries(rows, 1), length), rows)


@pytest.mark.parametrize(
    ("places", "dtype"),
    [
        ([[0, 5]], torch.uint8),
        ([[2, 2]], torch.uint8),
        ([[3, 2]], torch.uint8),
        ([[0, 1]], torch.int64),
        ([[0, 1]], torch.int8),
        ([[0, 1]], torch.float32),
        ([[0, 1]], torch.bool),
        ([[1]], torch.uint8),
        ([0, 1], torch.uint8),
    ],
)
def test_places_that_are_none(places, dtype):
    with pytest.raises(ValueError, match="places"):
        with_entries(torch.ones(1, 2), torch.tensor(places).to(dtype), 5)


def test_places_outside_a_long_row():
    for places in ([[-1, 2]], [[0, 300]], [[-32768, 32767]]):
        with pytest.raises(ValueError, match="from 0 to 299"):
            with_entries(torch.ones(1, 2), torch.tensor(places, dtype=torch.int16), 300)


# --- 8 bits ---------------------------------------------------------------------------------------


def slow_int8(row, uniform=None):
    """Quantise a row in Python's float64, with the scale rounded to float32 as in a payload."""
    scale = struct.unpack("f", struct.pack("f", max(map(abs, row)) / 127))[0]
    if scale == 0:
        return [0] * len(row), 0.0
    if uniform is None:
        found = [round(v / scale) for v in row]
    else:
        found = [int((v / scale + u) // 1) for v, u in zip(row, uniform, strict=True)]
    return [max(-127, min(127, q)) for q in found], scale


@pytest.mark.parametrize("stochastic", [False, True])
def test_8_bits_against_a_loop(stochastic):
    rows = rows_of(6, 50) * torch.tensor([1e-30, 1e-3, 1.0, 1e3, 1e30, 0.0]).unsqueeze(1)
    uniform = uniform_of(rows) if stochastic else None
    q, scale = quantise_int8(rows, uniform)
    assert (q.dtype, scale.dtype) == (torch.int8, torch.float32)
    for n, row in enumerate(rows.double().tolist()):
        expected, s = slow_int8(row, None if uniform is None else uniform[n].double().tolist())
        # In float32, a quotient near the border between two integers may round either way.
        off = [abs(a - b) for a, b in zip(q[n].tolist(), expected, strict=True)]
        assert max(off) <= 1 and sum(off) <= 1
        assert scale[n] == pytest.approx(s, rel=1e-6)


def test_the_error_is_at_most_half_a_step_and_with_chance_less_than_one():
    rows = rows_of(20, 300)
    for uniform, most in ((None, 0.5), (uniform_of(rows), 1.0)):
        q, scale = quantise_int8(rows, uniform)
        error = (rows - dequantise_int8(q, scale)).abs() / scale.unsqueeze(1)
        assert error.max() <= most * (1 + 1e-4)


@pytest.mark.slow
def test_the_mean_of_many_draws_is_the_number():
    rows = torch.tensor([[0.3, -0.7, 1.27, 0.004, -1.27]])
    draws = torch.rand(40_000, 5, generator=torch.Generator().manual_seed(0))
    found = torch.stack([dequantise_int8(*quantise_int8(rows, u[None]))[0] for u in draws[:4000]])
    standard_error = 0.01 / 2 / 4000**0.5
    assert ((found.mean(0) - rows[0]).abs() < 6 * standard_error).all()
    plain = dequantise_int8(*quantise_int8(rows))[0]
    assert (plain - rows[0]).abs().max() > 6 * standard_error  # rounding to nearest is biased


@pytest.mark.parametrize("largest", [1e38, 1e-44, 5e-324])
def test_extremes_stay_finite(largest):
    dtype = torch.float64 if largest < 1e-300 else torch.float32
    rows = torch.tensor([[largest, -largest, 0.0]], dtype=dtype)
    q, scale = quantise_int8(rows)
    found = dequantise_int8(q, scale)
    assert torch.isfinite(found).all()
    assert (found - rows).abs().max() <= max(largest / 100, 1e-43)


def test_rows_without_numbers():
    for shape in ((0, 4), (3, 0)):
        q, scale = quantise_int8(torch.ones(shape))
        assert q.shape == shape and scale.tolist() == [0.0] * shape[0]


@pytest.mark.parametrize(
    ("q", "scale"),
    [
        (torch.ones(2, 3, dtype=torch.int8), torch.tensor([1.0, torch.nan])),
        (torch.ones(2, 3, dtype=torch.int8), torch.tensor([1.0, torch.inf])),
        (torch.ones(2, 3, dtype=torch.int8), torch.tensor([1.0, -1.0])),
        (torch.ones(2, 3, dtype=torch.int8), torch.ones(3)),
        (torch.ones(2, 3, dtype=torch.int8), torch.ones(2).double()),
        (torch.ones(2, 3, dtype=torch.uint8), torch.ones(2)),
        (torch.ones(6, dtype=torch.int8), torch.ones(6)),
    ],
)
def test_what_is_no_8_bit_row(q, scale):
    with pytest.raises(ValueError):
        dequantise_int8(q, scale)


# --- 16 bits --------------------------------------------------------------------------------------


def all_numbers(dtype):
    """Return every finite number of a type, ascending, as float64."""
    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    values = bits.view(dtype).double()
    return values[torch.isfinite(values)].unique()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_takes_one_of_the_two_neighbours(dtype):
    """Compare with a search among all numbers of the type."""
    numbers = all_numbers(dtype)
    top = float(numbers[-1])
    special = [0.0, -0.0, 1e-9, -1e-9, 1.0, -1.0, top, -top, 1e-7, 6e-8, -6e-8, 2.0, 1.9999]
    v = torch.cat([torch.tensor(special), rows_of(1, 400)[0], 1e-5 * rows_of(1, 400, 2)[0]])
    u = uniform_of(v)
    found = round_to_half(v, dtype, u).double()
    for value, draw, got in zip(v.double().tolist(), u.double().tolist(), found, strict=True):
        above = int(torch.searchsorted(numbers, value))  # numbers[above] >= value
        if numbers[above] == value:
            assert got == value
            continue
        a, b = float(numbers[above - 1]), float(numbers[above])
        share = (value - a) / (b - a)
        assert got == (b if draw < share else a) or abs(draw - share) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_to_the_nearest_is_torchs(dtype):
    v = rows_of(10, 40)
    assert torch.equal(round_to_half(v, dtype), v.to(dtype))


def test_what_fp16_can_not_hold_is_its_largest():
    v = torch.tensor([1e6, -1e6, 65504.0, 65519.0])
    for uniform in (None, torch.tensor([0.0, 0.0, 0.0, 0.0])):
        assert round_to_half(v, torch.float16, uniform).tolist() == [65504, -65504, 65504, 65504]


def test_the_mean_of_many_16_bit_draws_is_the_number():
    v = torch.tensor([1 / 3, -1 / 3, 0.1, 1e-7]).repeat(20_000, 1)
    for dtype in (torch.float16, torch.bfloat16):
        found = round_to_half(v, dtype, uniform_of(v)).double()
        spread = found.std(0).clamp(min=1e-12)
        assert ((found.mean(0) - v[0].double()).abs() < 5 * spread / 20_000**0.5).all()

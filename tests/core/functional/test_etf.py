"""Tests of the simplex ETF's defining properties."""

import math

import pytest
import torch

from protofl.functional import simplex_etf


@pytest.mark.parametrize(("c", "k"), [(2, 2), (3, 3), (5, 9), (100, 100)])
def test_etf_columns_are_unit_and_equally_apart(c, k):
    v = simplex_etf(c, k, torch.Generator().manual_seed(3))
    assert v.shape == (k, c) and v.dtype == torch.float32
    expected = torch.full((c, c), -1 / (c - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(v.T @ v, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(v.sum(1), torch.zeros(k), atol=1e-5, rtol=0)


def test_etf_is_the_equation():
    """Compare with V from a U that a Gram-Schmidt loop makes of the same Gaussian draws."""
    c, k = 4, 6
    draws = torch.randn(k, c, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    u = []
    for column in draws.T:
        rest = column.clone()
        for earlier in u:
            rest -= (earlier * column).sum() * earlier
        u.append(rest / math.sqrt((rest * rest).sum()))
    v = torch.empty(k, c, dtype=torch.float64)
    for i in range(k):
        for j in range(c):
            centred = sum(u[n][i] * ((n == j) - 1 / c) for n in range(c))
            v[i, j] = math.sqrt(c / (c - 1)) * centred
    torch.testing.assert_close(simplex_etf(c, k, torch.Generator().manual_seed(8)), v.float())


def test_etf_depends_on_the_generator_alone():
    first = simplex_etf(4, 6, torch.Generator().manual_seed(0))
    torch.rand(5)
    assert torch.equal(first, simplex_etf(4, 6, torch.Generator().manual_seed(0)))
    assert not torch.equal(first, simplex_etf(4, 6, torch.Generator().manual_seed(1)))


def test_errors_name_the_value():
    generator = torch.Generator()
    with pytest.raises(ValueError, match="dim must be at least num_classes = 5: got 4"):
        simplex_etf(5, 4, generator)
    with pytest.raises(ValueError, match="num_classes must be at least 2: got 1"):
        simplex_etf(1, 4, generator)

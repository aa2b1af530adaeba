"""Tests of the simplex ETF's defining properties, and of ArcFace against a loop."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import arcface_loss, simplex_etf


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


def cosines(n, c, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, c, generator=generator, dtype=torch.float64) * 1.9 - 0.95


def naive_arcface(cosines, labels, s, m):
    total = 0.0
    bound = 1 - 1e-7
    for row, y in zip(cosines.tolist(), labels.tolist(), strict=True):
        row = [min(max(cosine, -bound), bound) for cosine in row]
        own = math.exp(s * math.cos(math.acos(row[y]) + m))
        rest = sum(math.exp(s * cosine) for c, cosine in enumerate(row) if c != y)
        total += -math.log(own / (own + rest))
    return total / max(len(labels), 1)


@pytest.mark.parametrize(("s", "m"), [(64.0, 0.5), (1.0, 0.0), (8.0, 1.2)])
@pytest.mark.parametrize(("n", "c"), [(6, 4), (1, 2), (3, 1), (0, 3)])
def test_arcface_is_the_loop(n, c, s, m):
    values, labels = cosines(n, c), torch.arange(n) % c
    expected = naive_arcface(values, labels, s, m)
    assert arcface_loss(values, labels, s, m).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_arcface_defaults_are_the_papers():
    values, labels = cosines(5, 3), torch.tensor([0, 1, 2, 1, 0])
    assert torch.equal(arcface_loss(values, labels), arcface_loss(values, labels, 64.0, 0.5))


def test_arcface_gradients():
    labels = torch.tensor([0, 2, 1])
    assert gradcheck(lambda c: arcface_loss(c, labels, 8.0, 0.3), (cosines(3, 3).requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_arcface_is_finite_at_and_beyond_cosine_1(dtype):
    values = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.01, -1.01]], dtype=dtype)
    values.requires_grad_()
    loss = arcface_loss(values, torch.tensor([0, 0, 1]))
    (gradient,) = torch.autograd.grad(loss, values)
    assert loss.isfinite() and gradient.isfinite().all()
    if dtype == torch.float64:
        expected = naive_arcface(values.detach(), torch.tensor([0, 0, 1]), 64.0, 0.5)
        assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_errors_name_the_value():
    generator = torch.Generator()
    with pytest.raises(ValueError, match="dim must be at least num_classes = 5: got 4"):
        simplex_etf(5, 4, generator)
    with pytest.raises(ValueError, match="num_classes must be at least 2: got 1"):
        simplex_etf(1, 4, generator)
    values, labels = cosines(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(ValueError, match=r"scale must be positive: got 0\.0"):
        arcface_loss(values, labels, scale=0.0)
    with pytest.raises(ValueError, match=r"cosines must be \[N, C\]: got shape \[2\]"):
        arcface_loss(values[0], labels)
    with pytest.raises(ValueError, match=r"labels must be \[N=3\]: got shape \[2\]"):
        arcface_loss(values, labels[:2])
    with pytest.raises(ValueError, match=r"cosines must be floating point: got torch\.int64"):
        arcface_loss(values.long(), labels)

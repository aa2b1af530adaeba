"""Tests of FedKTL's Eq. 1 to 3 against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import class_means
from protofl_plugins.methods.fedktl import arcface_loss, centroid_distance, mmd_rbf


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arcface_is_finite_at_and_beyond_cosine_1(dtype):
    values = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.01, -1.01]], dtype=dtype)
    values.requires_grad_()
    loss = arcface_loss(values, torch.tensor([0, 0, 1]))
    (gradient,) = torch.autograd.grad(loss, values)
    assert loss.isfinite() and gradient.isfinite().all()
    if dtype == torch.float64:
        expected = naive_arcface(values.detach(), torch.tensor([0, 0, 1]), 64.0, 0.5)
        assert loss.item() == pytest.approx(expected, rel=1e-9)


def naive_mmd(x, y, bandwidths):
    def mean_kernel(a, b):
        total = 0.0
        for p in a.tolist():
            for q in b.tolist():
                d = math.dist(p, q)
                total += sum(math.exp(-d * d / (2 * w)) for w in bandwidths)
        return total / (len(a) * len(b))

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


@pytest.mark.parametrize("own", [True, False])
def test_centroid_distance_is_the_loop(own):
    """FedKTL Eq. 2 over the classes that occur, and the plain mean of the published code."""
    Q, labels = randn(8, 6), torch.tensor([0, 0, 0, 2, 2, 3, 3, 3])
    centroids = randn(5, 6, seed=1)
    by_class, by_row = 0.0, 0.0
    for c in (0, 2, 3):
        rows = [Q[i] for i in range(8) if labels[i] == c]
        if own:
            centroids[c] = sum(rows) / len(rows)
        squares = [
            sum(float(a - b) ** 2 for a, b in zip(row, centroids[c], strict=True)) for row in rows
        ]
        by_class += sum(squares) / 6 / len(rows) / 3
        by_row += sum(squares) / 6 / 8
    assert by_class != pytest.approx(by_row, rel=1e-3)
    assert float(centroid_distance(Q, labels, centroids)) == pytest.approx(by_class, rel=1e-12)
    plain = centroid_distance(Q, labels, centroids, "batch")
    assert float(plain) == pytest.approx(by_row, rel=1e-12)
    for average in ("class", "batch"):
        assert centroid_distance(Q[:0], labels[:0], centroids, average) == 0


@pytest.mark.parametrize("average", ["class", "batch"])
def test_the_gradient_through_the_rows_own_means_is_zero(average):
    Q, labels = randn(8, 6).requires_grad_(), torch.tensor([0, 0, 0, 2, 2, 3, 3, 3])
    means, _ = class_means(Q, labels, 5)
    (a,) = torch.autograd.grad(centroid_distance(Q, labels, means, average), Q)
    (b,) = torch.autograd.grad(centroid_distance(Q, labels, means.detach(), average), Q)
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("average", ["class", "batch"])
def test_centroid_distance_gradients(average):
    labels = torch.tensor([0, 2, 2])
    inputs = (randn(3, 2).requires_grad_(), randn(4, 2, seed=1).requires_grad_())
    assert gradcheck(lambda Q, c: centroid_distance(Q, labels, c, average), inputs)


@pytest.mark.parametrize("bandwidths", [(10, 15, 20, 50), (0.5,)])
@pytest.mark.parametrize(("n", "m"), [(5, 7), (1, 1), (3, 1)])
def test_mmd_is_the_loop(n, m, bandwidths):
    x, y = randn(n, 6), randn(m, 6, seed=1) + 0.5
    expected = naive_mmd(x, y, bandwidths)
    assert mmd_rbf(x, y, bandwidths).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_mmd_defaults_and_a_sample_against_itself():
    x, y = randn(4, 6), randn(5, 6, seed=1)
    assert torch.equal(mmd_rbf(x, y), mmd_rbf(x, y, (10, 15, 20, 50)))
    assert mmd_rbf(x, x).item() == pytest.approx(0, abs=1e-12)


def test_mmd_of_near_samples_in_float32():
    x, y = randn(8, 64).float(), randn(9, 64).float() + 0.01
    expected = naive_mmd(x, y, (10, 15, 20, 50))
    assert mmd_rbf(x, y).item() == pytest.approx(expected, rel=1e-5)


def test_mmd_gradients():
    inputs = (randn(3, 2).requires_grad_(), randn(4, 2, seed=1).requires_grad_())
    assert gradcheck(lambda x, y: mmd_rbf(x, y, (1.0, 3.0)), inputs)

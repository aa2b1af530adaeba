"""Tests of FedGen's two server losses against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl_plugins.methods.fedgen import diversity_loss, ensemble_loss


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cross_entropy(scores, label):
    return math.log(sum(math.exp(s) for s in scores)) - scores[label]


@pytest.mark.parametrize("of", ["logits", "losses"])
@pytest.mark.parametrize(("m", "n", "c"), [(3, 5, 4), (1, 2, 3), (2, 1, 2)])
def test_ensemble_is_the_loop(of, m, n, c):
    logits, shares = randn(m, n, c), randn(m, n, seed=1).abs()
    labels = torch.arange(n) % c
    expected = 0.0
    for x, y in enumerate(labels.tolist()):
        rows = logits[:, x].tolist()
        if of == "logits":
            mixed = [sum(float(shares[i, x]) * rows[i][k] for i in range(m)) for k in range(c)]
            expected += cross_entropy(mixed, y) / n
        else:
            expected += sum(float(shares[i, x]) * cross_entropy(rows[i], y) for i in range(m)) / n
    assert ensemble_loss(logits, labels, shares, of).item() == pytest.approx(expected)


def slow_diversity(noise, features):
    """Compute the diversity loss one pair and one number at a time."""
    total = 0.0
    for e, z in zip(noise.tolist(), features.tolist(), strict=True):
        for f, w in zip(noise.tolist(), features.tolist(), strict=True):
            squared = sum((a - b) ** 2 for a, b in zip(e, f, strict=True)) / len(e)
            absolute = sum(abs(a - b) for a, b in zip(z, w, strict=True)) / len(z)
            total += squared * absolute
    return math.exp(-total / len(noise) ** 2)


@pytest.mark.parametrize(("n", "width", "k"), [(4, 3, 2), (1, 2, 3), (7, 1, 1)])
def test_diversity_is_the_loop(n, width, k):
    noise, features = randn(n, width), randn(n, k, seed=1)
    expected = slow_diversity(noise, features)
    assert diversity_loss(noise, features).item() == pytest.approx(expected)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_diversity_does_something_at_the_papers_widths(size):
    """With 32-dimensional noise and 512-dimensional features, norms make the exponent ≤ −22."""
    noise = torch.rand(10, 32, generator=torch.Generator().manual_seed(0))
    features = size * torch.randn(10, 512, generator=torch.Generator().manual_seed(1))
    features.requires_grad_()
    loss = diversity_loss(noise, features)
    assert 0.1 < loss.item() < 1
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.norm() > 1e-4
    # A step against the gradient moves the features apart.
    apart = torch.cdist(features, features, p=1).mean()
    moved = features - gradient
    assert torch.cdist(moved, moved, p=1).mean() > apart


def test_diversity_of_equal_features_and_of_equal_noise():
    rows = randn(3, 2)
    assert diversity_loss(rows, torch.ones(3, 4)).item() == 1
    assert diversity_loss(torch.ones(3, 2), rows).item() == 1
    # Coincident rows have no direction: the gradient is 0, not NaN.
    same = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(diversity_loss(rows, same), same)
    assert torch.isfinite(gradient).all()


def test_gradients():
    noise = randn(3, 2)
    assert gradcheck(lambda z: diversity_loss(noise, z), randn(3, 4, seed=1).requires_grad_())
    labels, shares = torch.tensor([0, 2]), torch.tensor([[0.2, 0.7], [0.8, 0.3]]).double()
    for of in ("logits", "losses"):
        logits = randn(2, 2, 3).requires_grad_()
        assert gradcheck(lambda z, of=of: ensemble_loss(z, labels, shares, of), logits)

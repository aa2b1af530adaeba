"""Tests of distances against loops over coordinates, at coincident and at near points."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import distances as module
from protofl.functional import prototype_alignment, prototype_distance


@pytest.fixture(autouse=True, params=["as it chooses", "by a product"])
def road(request, monkeypatch):
    """Test both ways to compute distances; at these sizes only the first would be chosen."""
    if request.param == "by a product":
        monkeypatch.setattr(module, "FEW", -1)


def euclidean(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)))


def naive(a, b, distance):
    d = euclidean(a, b)
    return d if distance == "l2" else d * d / len(a)


def points(n, c, k, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, k, generator=generator, dtype=dtype),
        torch.randn(c, k, generator=generator, dtype=dtype),
    )


@pytest.mark.parametrize("distance", ["l2", "mse"])
@pytest.mark.parametrize(("n", "c", "k"), [(7, 5, 3), (1, 2, 1), (4, 1, 6), (0, 3, 2), (3, 0, 2)])
def test_distance_is_the_loop(n, c, k, distance):
    features, prototypes = points(n, c, k)
    expected = [[naive(f, p, distance) for p in prototypes] for f in features]
    got = prototype_distance(features, prototypes, distance)
    assert got.shape == (n, c)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64).reshape(n, c))


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_distance_gradients(distance):
    features, prototypes = points(4, 3, 5)
    features.requires_grad_()
    prototypes.requires_grad_()
    assert gradcheck(lambda f, p: prototype_distance(f, p, distance), (features, prototypes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_coincident_points_are_at_0_with_gradient_0(distance, dtype):
    _, prototypes = points(0, 20, 512, dtype=dtype)
    prototypes = 30 * prototypes + 7
    features = prototypes.clone().requires_grad_()
    targets = prototypes.clone().requires_grad_()
    own = prototype_distance(features, targets, distance).diagonal()
    assert torch.equal(own, torch.zeros(20, dtype=dtype))
    for gradient in torch.autograd.grad(own.sum(), (features, targets)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("offset", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3])
def test_float32_distance_of_near_points(gap, offset):
    noise, prototypes = points(50, 10, 512, dtype=torch.float32)
    prototypes += offset
    own = torch.arange(50) % 10
    features = prototypes[own] + gap * noise
    got = prototype_distance(features, prototypes)
    assert got.dtype == torch.float32
    exact = (features.double()[:, None] - prototypes.double()).square().sum(2).sqrt()
    torch.testing.assert_close(got.double(), exact, rtol=2e-7, atol=0)
    # The textbook formula in float32 would fail this test by far.
    near = (torch.arange(50), own)
    squares = features.square().sum(1, keepdim=True) + prototypes.square().sum(1)
    textbook = (squares - 2 * features @ prototypes.T).clamp_min(0).sqrt()
    assert ((textbook - exact).abs() / exact)[near].max() > 1e-5


@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_float32_gradient_of_near_points(offset):
    noise, prototypes = points(10, 10, 512, dtype=torch.float32)
    prototypes += offset
    features = (prototypes + 1e-3 * noise).requires_grad_()
    (got,) = torch.autograd.grad(
        prototype_distance(features, prototypes).diagonal().sum(), features
    )
    difference = (features.detach() - prototypes).double()
    unit = difference / difference.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got.double(), unit, rtol=1e-4, atol=1e-6)


def test_half_precision_is_computed_in_float32():
    features, prototypes = points(3, 4, 64)
    got = prototype_distance(features.bfloat16(), prototypes.bfloat16())
    assert got.dtype == torch.float32
    wide = prototype_distance(features.bfloat16().double(), prototypes.bfloat16().double())
    torch.testing.assert_close(got.double(), wide, rtol=1e-6, atol=0)


def test_autocast_leaves_the_distance_alone():
    features, prototypes = points(3, 4, 64, dtype=torch.float32)
    expected = prototype_distance(features, prototypes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(prototype_distance(features, prototypes), expected)


def test_nan_is_not_hidden():
    features, prototypes = points(3, 4, 8)
    features[1, 2] = math.nan
    got = prototype_distance(features, prototypes)
    assert got.isnan().all(1).tolist() == [False, True, False]


def naive_alignment(features, labels, prototypes, known, distance):
    total = 0.0
    for feature, label in zip(features, labels.tolist(), strict=True):
        if known[label]:
            total += naive(feature, prototypes[label], distance)
    return total / max(len(features), 1)


@pytest.mark.parametrize("distance", ["l2", "mse"])
@pytest.mark.parametrize(
    "known", [[True] * 4, [True, False, True, False], [False, True, False, False], [False] * 4]
)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_alignment_is_the_loop(n, known, distance):
    features, prototypes = points(n, 4, 6, seed=n)
    labels = (torch.arange(n) * 3 + 1) % 4
    mask = torch.tensor(known)
    prototypes[~mask] = math.nan  # unknown rows may hold anything
    expected = naive_alignment(features, labels, prototypes, known, distance)
    got = prototype_alignment(features, labels, prototypes, mask, distance)
    assert got.shape == ()
    assert got.item() == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_alignment_gradients(distance):
    features, prototypes = points(5, 3, 4)
    labels = torch.tensor([0, 2, 2, 1, 0])
    known = torch.tensor([True, False, True])
    inputs = (features.requires_grad_(), prototypes.requires_grad_())
    assert gradcheck(lambda f, p: prototype_alignment(f, labels, p, known, distance), inputs)


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_alignment_gradient_is_0_at_the_prototype_and_for_unknown_classes(distance):
    _, prototypes = points(0, 3, 4)
    features = prototypes[[0, 1, 2]].clone()
    features[2] += 1
    prototypes[1] = math.nan
    features.requires_grad_()
    known = torch.tensor([True, False, True])
    loss = prototype_alignment(features, torch.arange(3), prototypes, known, distance)
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient[:2].count_nonzero() == 0
    assert gradient[2].abs().min() > 0.1 / 3


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_without_labels_row_c_is_of_class_c(distance):
    means, prototypes = points(4, 4, 6)
    known = torch.tensor([True, False, True, True])
    prototypes[1] = math.nan
    expected = naive_alignment(means, torch.arange(4), prototypes, known.tolist(), distance)
    got = prototype_alignment(means, None, prototypes, known, distance)
    assert got.item() == pytest.approx(expected, rel=1e-12, abs=0)


def test_labels_of_32_bits_do():
    features, prototypes = points(2, 3, 4)
    labels, known = torch.tensor([2, 0]), torch.tensor([True] * 3)
    wide = prototype_alignment(features, labels, prototypes, known)
    assert torch.equal(prototype_alignment(features, labels.int(), prototypes, known), wide)


def test_errors_name_the_value():
    features, prototypes = points(4, 3, 5)
    labels, known = torch.zeros(4, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="distance must be 'l2' or 'mse': got 'cosine'"):
        prototype_distance(features, prototypes, "cosine")
    with pytest.raises(ValueError, match=r"prototypes must be \[C, K=5\]: got shape \[3, 4\]"):
        prototype_distance(features, prototypes[:, :4])
    with pytest.raises(ValueError, match=r"features must be \[N, K\]: got shape \[5\]"):
        prototype_distance(features[0], prototypes)
    with pytest.raises(ValueError, match=r"features must be floating point: got torch\.int64"):
        prototype_distance(features.long(), prototypes)
    with pytest.raises(ValueError, match=r"labels must be \[N=4\]: got shape \[3\]"):
        prototype_alignment(features, labels[:3], prototypes, known)
    with pytest.raises(ValueError, match=r"labels must be integers: got torch\.float32"):
        prototype_alignment(features, labels.float(), prototypes, known)
    with pytest.raises(ValueError, match=r"features must be \[C=3, K\]: got shape \[4, 5\]"):
        prototype_alignment(features, None, prototypes, known)
    with pytest.raises(ValueError, match=r"known must be \[C=3\]: got shape \[2\]"):
        prototype_alignment(features, labels, prototypes, known[:2])
    with pytest.raises(ValueError, match=r"known must be bool: got torch\.int64"):
        prototype_alignment(features, labels, prototypes, known.long())
    with pytest.raises(ValueError, match=r"distance must be .* got 'l1'"):
        prototype_alignment(features, labels, prototypes, known, "l1")

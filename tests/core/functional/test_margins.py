"""Tests of margins and the margin-enhanced contrastive loss against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import (
    distances,
    margin_contrastive_loss,
    mean_margin,
    nearest_margin,
    pair_margin,
)
from protofl.functional.margins import class_margins, largest_margins

KNOWN = [
    [True] * 5,
    [True, False, True, True, False],
    [False, True, False, False, True],
    [False, False, True, False, False],
    [False] * 5,
]


@pytest.fixture(autouse=True, params=["as they choose", "by a product"])
def road(request, monkeypatch):
    """Test both ways to compute distances; at these sizes only the first would be chosen."""
    if request.param == "by a product":
        monkeypatch.setattr(distances, "FEW", -1)


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def euclidean(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)))


def others(known):
    classes = [c for c, here in enumerate(known) if here]
    return {a: [b for b in classes if b != a] for a in classes}


def naive_pair(prototypes, known):
    pairs = [euclidean(prototypes[a], prototypes[b]) for a, bs in others(known).items() for b in bs]
    return max(pairs, default=0.0)


def naive_nearest(prototypes, known):
    nearest = [
        min(euclidean(prototypes[a], prototypes[b]) for b in bs)
        for a, bs in others(known).items()
        if bs
    ]
    return max(nearest, default=0.0)


def naive_mean(prototypes, known):
    pairs = [euclidean(prototypes[a], prototypes[b]) for a, bs in others(known).items() for b in bs]
    return sum(pairs) / (sum(known) - 1) ** 2 if pairs else 0.0


def mean_nearest(prototypes, known):
    return mean_margin(prototypes, known, "nearest")


def naive_mean_nearest(prototypes, known):
    nearest = [*naive_margins(prototypes, known).values()]
    return sum(nearest) / len(nearest) if nearest else 0.0


MARGINS = [
    (pair_margin, naive_pair),
    (nearest_margin, naive_nearest),
    (mean_margin, naive_mean),
    (mean_nearest, naive_mean_nearest),
]


@pytest.mark.parametrize(("margin", "naive"), MARGINS)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("k", [2, 8])
def test_margins_are_the_loops(margin, naive, known, k):
    prototypes = randn(5, k)
    mask = torch.tensor(known)
    prototypes[~mask] = math.nan  # unknown rows may hold anything
    got = margin(prototypes, mask)
    assert got.shape == ()
    assert got.item() == pytest.approx(naive(prototypes, known), rel=1e-12, abs=0)


def test_margins_tell_each_other_apart():
    # Classes at 0, 1 and 10: pairs 1, 9, 10.
    prototypes, known = torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([True] * 3)
    assert pair_margin(prototypes, known).item() == 10
    assert nearest_margin(prototypes, known).item() == 9
    assert mean_margin(prototypes, known).item() == 2 * 20 / 4
    assert mean_margin(prototypes[:2], known[:2]).item() == 2  # Eq. 6 as printed is twice the mean


@pytest.mark.parametrize("margin", [margin for margin, _ in MARGINS])
def test_margins_gradients(margin):
    known = torch.tensor([True, True, False, True])
    assert gradcheck(lambda p: margin(p, known), (randn(4, 3).requires_grad_(),))


@pytest.mark.parametrize("margin", [margin for margin, _ in MARGINS])
@pytest.mark.parametrize("known", [[True] * 3, [True, False, False], [False] * 3])
def test_margins_of_coincident_prototypes(margin, known):
    prototypes = torch.full((3, 512), 0.3, requires_grad=True)
    got = margin(prototypes, torch.tensor(known))
    assert got.item() == 0 and got.dtype == torch.float32
    (gradient,) = torch.autograd.grad(got, prototypes)
    assert gradient.count_nonzero() == 0 and gradient.isfinite().all()


def naive_rows(anchored, labels, prototypes, margin, known):
    rows = []
    for feature, c in zip(anchored, labels.tolist(), strict=True):
        if known is not None and not known[c]:
            rows.append(0.0)
            continue
        classes = [j for j in range(len(prototypes)) if known is None or known[j]]
        own = math.exp(-(euclidean(feature, prototypes[c]) + margin))
        rest = sum(math.exp(-euclidean(feature, prototypes[j])) for j in classes if j != c)
        rows.append(-math.log(own / (own + rest)))
    return rows


@pytest.mark.parametrize("known", [None, *KNOWN])
@pytest.mark.parametrize("margin", [0.0, 1.7])
@pytest.mark.parametrize("n", [0, 1, 8])
def test_contrastive_is_the_loop(n, margin, known):
    anchored, prototypes = randn(n, 3, seed=n), randn(5, 3, seed=99)
    labels = (torch.arange(n) * 2 + 1) % 5
    mask = None if known is None else torch.tensor(known)
    if mask is not None:
        prototypes[~mask] = math.nan
    expected = naive_rows(anchored, labels, prototypes, margin, known)
    loss = margin_contrastive_loss(anchored, labels, prototypes, margin, mask)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(expected) / max(n, 1), rel=1e-12, abs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contrastive_margin_may_be_a_tensor(dtype):
    anchored, prototypes, labels = (
        randn(4, 3).to(dtype),
        randn(2, 3, seed=1).to(dtype),
        [0, 1, 1, 0],
    )
    labels = torch.tensor(labels)
    number = margin_contrastive_loss(anchored, labels, prototypes, 0.5)
    tensor = margin_contrastive_loss(anchored, labels, prototypes, torch.tensor(0.5))
    assert tensor.dtype == dtype and torch.equal(number, tensor)


@pytest.mark.parametrize("known", [None, [True, False, True], [False] * 3])
def test_contrastive_gradients(known):
    labels = torch.tensor([0, 2, 1, 0])
    mask = None if known is None else torch.tensor(known)
    inputs = (randn(4, 2).requires_grad_(), randn(3, 2, seed=1).requires_grad_())
    margin = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda a, p, m: margin_contrastive_loss(a, labels, p, m, mask), (*inputs, margin)
    )


@pytest.mark.parametrize("known", [None, [True, True, False], [True, False, False], [False] * 3])
def test_contrastive_gradient_is_finite_at_coincident_points_and_unknown_classes(known):
    prototypes = randn(3, 16).float()
    anchored = prototypes.clone().requires_grad_()
    mask = None if known is None else torch.tensor(known)
    targets = prototypes.clone()
    if mask is not None:
        targets[~mask] = math.inf
    loss = margin_contrastive_loss(anchored, torch.arange(3), targets, 100.0, mask)
    (gradient,) = torch.autograd.grad(loss, anchored)
    assert loss.isfinite() and gradient.isfinite().all()
    if mask is not None:
        assert gradient[~mask].count_nonzero() == 0


def test_contrastive_of_one_known_class_is_0():
    known = torch.tensor([False, True])
    labels = torch.tensor([1, 1, 0])
    assert margin_contrastive_loss(randn(3, 2), labels, randn(2, 2), 5.0, known).item() == 0


def test_errors_name_the_value():
    prototypes, known = randn(3, 4), torch.ones(3, dtype=torch.bool)
    for margin in (pair_margin, nearest_margin, mean_margin):
        with pytest.raises(ValueError, match=r"known must be \[C=3\]: got shape \[2\]"):
            margin(prototypes, known[:2])
        with pytest.raises(ValueError, match=r"known must be bool: got torch\.float32"):
            margin(prototypes, known.float())
        with pytest.raises(ValueError, match=r"prototypes needs a class: got shape \[0, 4\]"):
            margin(prototypes[:0], known[:0])
    anchored, labels = randn(2, 4), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"anchored must be \[N, K\]: got shape \[4\]"):
        margin_contrastive_loss(anchored[0], labels, prototypes, 1.0)
    with pytest.raises(ValueError, match=r"0-d tensor: got shape \[2\]"):
        margin_contrastive_loss(anchored, labels, prototypes, torch.ones(2))
    with pytest.raises(ValueError, match=r"known must be \[C=3\]: got shape \[4\]"):
        margin_contrastive_loss(anchored, labels, prototypes, 1.0, torch.ones(4).bool())
    with pytest.raises(ValueError, match=r"labels must be \[N=2\]: got shape \[1\]"):
        margin_contrastive_loss(anchored, labels[:1], prototypes, 1.0)
    with pytest.raises(ValueError, match="of must be 'pairs' or 'nearest': got 'all'"):
        mean_margin(prototypes, known, "all")


def naive_margins(prototypes, known):
    """Return {class: distance to the nearest other class}."""
    return {
        a: min(euclidean(prototypes[a], prototypes[b]) for b in bs)
        for a, bs in others(known).items()
        if bs
    }


@pytest.mark.parametrize("known", KNOWN)
def test_margins_by_class(known):
    prototypes = randn(5, 3)
    found = class_margins(prototypes, torch.tensor(known)).tolist()
    wanted = naive_margins(prototypes, known)
    assert {c: value for c, value in enumerate(found) if value == value} == pytest.approx(wanted)


def test_the_largest_of_the_clients_margins():
    prototypes = randn(len(KNOWN), 5, 3)
    found = largest_margins(prototypes, torch.tensor(KNOWN)).tolist()
    each = [naive_margins(*client) for client in zip(prototypes, KNOWN, strict=True)]
    assert found == pytest.approx([max(m[c] for m in each if c in m) for c in range(5)])
    few = largest_margins(prototypes[2:], torch.tensor(KNOWN[2:]))
    assert few.isnan().tolist() == [True, False, True, True, False]

"""Tests of FedSA's losses against loops, and of the fast version against the plain ones."""

import math

import pytest
import torch

from protofl import functional as F
from protofl.functional import distances

C, K = 5, 4
LABELS = [0, 2, 2, 3, 0, 0, 3]
KNOWN = [[True] * C, [True, True, False, True, True]]


@pytest.fixture(autouse=True, params=["as they choose", "by a product"])
def road(request, monkeypatch):
    """Test both ways to compute distances; at these sizes only the first would be chosen."""
    if request.param == "by a product":
        monkeypatch.setattr(distances, "FEW", -1)


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def given(known, margin=1.5):
    known = torch.tensor(known)
    penalty = F.margin_penalty(torch.arange(C), C, margin, known, torch.float64)
    return {
        "features": randn(len(LABELS), K).requires_grad_(),
        "labels": torch.tensor(LABELS),
        "anchors": randn(C, K, seed=1),
        "known": known,
        "penalty": penalty,
    }


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


def rows_of(values, rows):
    """Return samples, or class means, with their classes as lists."""
    features, labels = values["features"].tolist(), values["labels"].tolist()
    if rows == "sample":
        return list(zip(features, labels, strict=True))
    found = []
    for c in sorted({*labels}):
        own = [f for f, y in zip(features, labels, strict=True) if y == c]
        found.append(([sum(column) / len(own) for column in zip(*own, strict=True)], c))
    return found


def l2(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("rows", ["class", "sample"])
@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_alignment_is_eq_5(known, rows, distance):
    values = given(known)
    anchors, total = values["anchors"].tolist(), 0.0
    pulled = rows_of(values, rows)
    for row, c in pulled:
        if known[c]:
            d = l2(row, anchors[c])
            total += d if distance == "l2" else d**2 / K
    expected = total / len(pulled) if rows == "sample" else total
    found = F.anchor_alignment(**without(values, "penalty"), distance=distance, rows=rows)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("rows", ["class", "sample"])
def test_contrast_is_eq_7(known, rows):
    values, total = given(known, margin=1.5), 0.0
    anchors, pulled = values["anchors"].tolist(), rows_of(given(known), rows)
    for row, c in pulled:
        if known[c]:
            own = math.exp(-(l2(row, anchors[c]) + 1.5))
            others = (math.exp(-l2(row, anchors[b])) for b in range(C) if known[b] and b != c)
            total -= math.log(own / (own + sum(others)))
    found = F.anchor_contrast(**values, rows=rows)
    assert found.item() == pytest.approx(total / len(pulled), rel=1e-12)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("contrast", ["class", "sample"])
@pytest.mark.parametrize("align", ["class", "sample"])
@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_the_fast_and_the_plain_ones_agree(known, align, contrast, distance):
    values = given(known)
    fast = F.anchor_terms(**values, distance=distance, align=align, contrast=contrast)
    plain = (
        F.anchor_alignment(**without(values, "penalty"), distance=distance, rows=align),
        F.anchor_contrast(**values, rows=contrast),
    )
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
        (a,), (b,) = (
            torch.autograd.grad(term, values["features"], retain_graph=True)
            for term in (one, other)
        )
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_a_feature_on_its_anchor_has_no_gradient():
    values = given(KNOWN[0])
    features = values["anchors"][[1, 4]].clone().requires_grad_()
    values |= {"features": features, "labels": torch.tensor([1, 4])}
    L_R, _ = F.anchor_terms(**values)
    (gradient,) = torch.autograd.grad(L_R, features)
    assert L_R.item() == 0 and not gradient.any()


@pytest.mark.parametrize("known", KNOWN)
def test_calibration_is_eq_8(known):
    scores = randn(C, C, seed=2)
    expected = [
        math.log(sum(math.exp(s) for s in row)) - row[c]
        for c, row in enumerate(scores.tolist())
        if known[c]
    ]
    found = F.anchor_calibration(scores, torch.tensor(known))
    assert found.item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("function", "leaves_out"),
    [
        (F.anchor_alignment, "penalty"),
        (F.anchor_contrast, ""),
        (F.anchor_terms, ""),
    ],
)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"anchors": randn(C, K + 1)}, "K="),
        ({"known": torch.ones(C)}, "known must be bool"),
        ({"labels": torch.zeros(len(LABELS))}, "labels must be integers"),
    ],
)
def test_wrong_arguments(function, leaves_out, wrong, message):
    with pytest.raises(ValueError, match=message):
        function(**without(given(KNOWN[0]) | wrong, leaves_out))


def test_wrong_options():
    values = given(KNOWN[0])
    with pytest.raises(ValueError, match="rows must be 'class' or 'sample': got 'means'"):
        F.anchor_contrast(**values, rows="means")
    with pytest.raises(ValueError, match="rows must be 'class' or 'sample': got 'all'"):
        F.anchor_terms(**values, align="all")
    with pytest.raises(ValueError, match="distance must be"):
        F.anchor_terms(**values, distance="cosine")
    with pytest.raises(ValueError, match="penalty must be"):
        F.anchor_terms(**values | {"penalty": randn(C)})
    with pytest.raises(ValueError, match="scores must be"):
        F.anchor_calibration(randn(C, 3), torch.ones(C, dtype=torch.bool))

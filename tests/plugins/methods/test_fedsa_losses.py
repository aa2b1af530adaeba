"""Tests of FedSA's Eq. 5, 7 and 8 against loops."""

import math

import pytest
import torch

from protofl.functional import distances
from protofl_plugins.methods import fedsa

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


def given(known):
    return {
        "features": randn(len(LABELS), K).requires_grad_(),
        "labels": torch.tensor(LABELS),
        "anchors": randn(C, K, seed=1),
        "known": torch.tensor(known),
    }


def terms(values, align="class", contrast="class", distance="l2", margin=1.5):
    """Return L_R and L_MCL as `local_loss` takes them."""
    config = fedsa.FedSA.Config(align=align, contrast=contrast, distance=distance)
    margin = torch.tensor(margin, dtype=torch.float64)
    penalty = fedsa.margin_penalty(margin, values["known"], torch.float64)
    rows = fedsa.rows_of(**values, config=config)
    L_R = fedsa.alignment(rows, align, distance)
    return L_R, fedsa.contrast(rows, contrast, margin, penalty)


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
    found, _ = terms(values, rows, distance=distance)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("rows", ["class", "sample"])
def test_contrast_is_eq_7(known, rows):
    values, total = given(known), 0.0
    anchors, pulled = values["anchors"].tolist(), rows_of(given(known), rows)
    for row, c in pulled:
        if known[c]:
            own = math.exp(-(l2(row, anchors[c]) + 1.5))
            others = (math.exp(-l2(row, anchors[b])) for b in range(C) if known[b] and b != c)
            total -= math.log(own / (own + sum(others)))
    _, found = terms(values, contrast=rows)
    assert found.item() == pytest.approx(total / len(pulled), rel=1e-12)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize(("align", "contrast"), [("class", "sample"), ("sample", "class")])
def test_the_two_equations_do_not_depend_on_each_other(known, align, contrast):
    values = given(known)
    mixed = terms(values, align, contrast)
    alone = terms(values, align, align)[0], terms(values, contrast, contrast)[1]
    for one, other in zip(mixed, alone, strict=True):
        assert torch.equal(one, other)


def test_the_penalty_is_the_margin_of_the_own_class_and_infinite_for_unknown_others():
    found = fedsa.margin_penalty(torch.tensor(0.5), torch.tensor([True, False, True]), torch.float)
    inf = math.inf
    assert found.tolist() == [[0.5, inf, 0.0], [0.0, 0.5, 0.0], [0.0, inf, 0.5]]


def test_a_feature_on_its_anchor_has_no_gradient():
    values = given(KNOWN[0])
    features = values["anchors"][[1, 4]].clone().requires_grad_()
    values |= {"features": features, "labels": torch.tensor([1, 4])}
    L_R, _ = terms(values)
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
    found = fedsa.calibration(scores, torch.tensor(known))
    assert found.item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)

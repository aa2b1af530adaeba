"""Tests of relations between classes: Gram and distance matrices of two spaces against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl_plugins.methods.fedsaf import structural_loss

KINDS = ["cka", "rdm_cos"]


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def centred(rows):
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [[x - m for x, m in zip(row, mean, strict=True)] for row in rows]


def gram(rows):
    return [[sum(x * y for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]


def distances(rows):
    return [[math.dist(a, b) for b in rows] for a in rows]


def upper(matrix):
    n = len(matrix)
    return [matrix[a][b] for a in range(n) for b in range(n) if a < b]


def entries(matrix):
    return [x for row in matrix for x in row]


def unlike(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return 1 - dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


SLOW = {
    "cka": lambda X, Y: unlike(entries(gram(centred(X))), entries(gram(centred(Y)))),
    "rdm_cos": lambda X, Y: unlike(upper(distances(X)), upper(distances(Y))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unknown", [(), (1, 4)])
def test_it_is_the_loop_over_the_known_classes(kind, unknown):
    X, Y = points(6, 5), points(6, 9, seed=1)
    known = torch.tensor([c not in unknown for c in range(6)])
    rows = [[row for c, row in enumerate(z.tolist()) if known[c]] for z in (X, Y)]
    slow = SLOW[kind](*rows)
    for c in unknown:
        X[c], Y[c] = torch.nan, torch.inf
    found = structural_loss(X, Y, known, kind)
    assert found.item() == pytest.approx(slow, rel=1e-9)
    assert found > 0.01
    known_rows = X.nan_to_num(0.3).requires_grad_()
    assert gradcheck(lambda x: structural_loss(x, Y, known, kind), known_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rotation_of_a_wider_space_changes_nothing(kind):
    X, V = points(4, 5), torch.linalg.qr(points(9, 5, seed=1))[0]
    known = torch.ones(4, dtype=torch.bool)
    assert structural_loss(X, X @ V.T, known, kind).item() == pytest.approx(0, abs=1e-12)
    scaled = structural_loss(X, 3 * X @ V.T, known, kind).item()
    assert scaled == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_classes_have_no_structure(kind, rows):
    X = points(3, 5).requires_grad_()
    found = structural_loss(X, points(3, 2, seed=1), torch.arange(3) < rows, kind)
    found.backward()
    assert found == 0
    assert (X.grad == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_have_a_finite_gradient(kind):
    X = torch.ones(3, 5, requires_grad=True)
    structural_loss(
        X, points(3, 2, seed=1).float(), torch.ones(3, dtype=torch.bool), kind
    ).backward()
    assert X.grad.isfinite().all()

"""Tests of FedORGP's Eq. 3 to 5 against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl_plugins.methods.fedorgp import L_OR, FedORGP


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


def slow_orthogonality(rows, labels, P, lambda_s, gamma):
    total, C = 0.0, len(P)
    for row, c in zip(rows, labels, strict=True):
        others = [abs(cosine(row, p)) for k, p in enumerate(P) if k != c]
        own = 1 - cosine(row, P[c])
        total += lambda_s * own + gamma * sum(others) / (C - 1)
    return total / len(rows)


def test_it_is_eq_5():
    rows, P, y = points(7, 5), points(4, 5, seed=1), [0, 3, 1, 1, 2, 0, 3]
    config = FedORGP.Config(lambda_s=0.7, gamma=3.0)
    found = L_OR(rows, torch.tensor(y), P, config)
    slow = slow_orthogonality(rows.tolist(), y, P.tolist(), 0.7, 3.0)
    assert found.item() == pytest.approx(slow, rel=1e-12)
    assert gradcheck(lambda p: L_OR(rows, torch.tensor(y), p, config), P.requires_grad_())


def test_orthogonal_prototypes_of_their_own_class_have_no_loss():
    P = torch.linalg.qr(points(6, 6))[0][:4]
    assert L_OR(2 * P, torch.arange(4), 5 * P, FedORGP.Config()).abs() < 1e-12
    assert L_OR(P[:1], torch.tensor([0]), P[:1], FedORGP.Config()).abs() < 1e-12  # one class

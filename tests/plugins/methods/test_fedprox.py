"""Tests of FedProx's proximal term (Eq. 2). Tests of its averaging: test_weight_sharing.py."""

from __future__ import annotations

import pytest
import torch
from slow_equations import numbers

import protofl as pf
from protofl.testing import toy as toyfed

ONE = toyfed.group(toyfed.NORM)


def slow_prox(record, start, mu):
    total = 0.0
    for p, w in zip(record.model.parameters(), start, strict=True):
        for a, b in zip(numbers(p.flatten()), numbers(w.flatten()), strict=True):
            total += (a - b) ** 2
    return mu / 2 * total


def test_the_proximal_term_is_eq_2(toy, randn):
    found = toy("fedprox", set={"mu": 0.3}, models=ONE)
    received = pf.models.pack_weights(
        toy("fedavg", models=ONE, seed=5).client(0).model.double(), "model"
    )
    record = found.prepare(0, received)
    start = [p.detach().clone() for p in record.model.parameters()]
    for (name, _), w in zip(record.model.named_parameters(), start, strict=True):
        assert torch.equal(received[f"model/{name}"], w)  # w are the received weights
    y = torch.tensor([0, 1, 2])
    at_start = found.terms(record, randn(3, 8), y)
    assert at_start.keys() == {"ce", "prox"}
    assert at_start["prox"].item() == 0
    gradients = torch.autograd.grad(at_start["prox"], list(record.model.parameters()))
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)
    with torch.no_grad():
        for seed, p in enumerate(record.model.parameters()):
            p += randn(*p.shape, seed=seed)
    moved = found.terms(record, randn(3, 8), y)["prox"]
    assert moved.item() == pytest.approx(slow_prox(record, start, 0.3), rel=1e-12)
    gradients = torch.autograd.grad(moved, list(record.model.parameters()))
    for g, p, w in zip(gradients, record.model.parameters(), start, strict=True):
        assert torch.allclose(g, 0.3 * (p - w), rtol=1e-10, atol=1e-12)


def test_mu_0_regresses_to_fedavg(toy):
    average, proximal = toy("fedavg", models=ONE), toy("fedprox", set={"mu": 0}, models=ONE)
    a, b = average.rounds(2), proximal.rounds(2)
    for one, two in zip(a, b, strict=True):
        assert two["loss_terms"]["prox"] == 0
        assert one["loss_terms"]["ce"] == two["loss_terms"]["ce"]
        assert one["clients"] == two["clients"]
    assert toyfed.same(dict(average.server.global_state), dict(proximal.server.global_state))


def test_a_large_mu_keeps_clients_near_the_shared_model(toy):
    moved = []
    for mu in (0.0, 5.0):
        found = toy("fedprox", set={"mu": mu}, models=ONE)
        found.rounds(1)
        start = pf.Payload.from_bytes(found.pool.downloads(0)[0])
        end = pf.Payload.from_bytes(found.pool.uploads(0)[0])
        moved.append(float((end["model/head.weight"] - start["model/head.weight"]).norm()))
    assert 0 < moved[1] < 0.8 * moved[0]


def test_the_default_mu(toy):
    assert toy("fedprox", models=ONE).plan.composition.configs["fedprox"].mu == 0.01

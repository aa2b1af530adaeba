"""Tests of AlignFed against loops: weight schedule, loss, points, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import mean_cross_entropy, numbers

import protofl as pf
from protofl.testing import toy as toyfed


def given_to(federation, number, round):
    record = federation.client(number)
    record.round = round
    found = federation.lifecycle("before_training", client=pf.Client(record, "alignfed"))
    return found["alignfed"]


def test_the_weight_falls_geometrically(toy):
    federation = toy("alignfed", rounds=8)
    weights = [given_to(federation, 0, t)["weight"].item() for t in range(8)]
    assert weights == pytest.approx([20 * (2 / 20) ** (t / 8) for t in range(8)], rel=1e-6)
    assert weights[0] == 20


def test_all_clients_have_the_same_points(toy):
    federation = toy("alignfed")
    v = given_to(federation, 0, 0)["v"].double()
    assert torch.equal(given_to(federation, 3, 1)["v"], v.float())
    cosines = v @ v.T
    C = len(v)
    assert torch.allclose(cosines.diagonal(), torch.ones(C).double(), atol=1e-6)
    others = cosines[~torch.eye(C, dtype=torch.bool)]
    assert torch.allclose(others, torch.full_like(others, -1 / (C - 1)), atol=1e-6)


def test_the_loss(toy, randn):
    federation = toy("alignfed")
    record = federation.client(0)
    record.model.double()
    client = pf.Client(record, "alignfed")
    y = [2, 0, 2, 3]
    x = torch.rand(4, *client.sample.shape, dtype=torch.float64)
    z = client.features(x)
    v = torch.nn.functional.normalize(randn(4, 8), dim=1)
    terms = federation.call(
        "local_loss",
        client=client,
        batch=pf.Batch(x, torch.tensor(y), torch.arange(4)),
        output=pf.Output(z, client.head(z)),
        constants={"v": v, "weight": torch.tensor(5.0)},
    )

    def cosine(a, b):
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))

    cosines = [[cosine(row, point) for point in numbers(v)] for row in numbers(z)]
    total = 0.0
    for n, c in enumerate(y):
        others = [row[c] for row in cosines]
        total -= (cosines[n][c] - math.log(sum(map(math.exp, others)))) / y.count(c) / 4
    assert terms["align"].item() == pytest.approx(5 * total, rel=1e-9)
    assert terms["ce"].item() == pytest.approx(
        mean_cross_entropy(numbers(client.head(z)), y), rel=1e-9
    )


def test_heads_are_averaged_by_samples(toy):
    federation = toy("alignfed")
    federation.rounds(1)
    sizes = [len(federation.client(i).train) for i in range(4)]
    uploads = [pf.Payload.from_bytes(federation.pool.uploads(0)[i]) for i in range(4)]
    for name, found in federation.server.global_state.select("head/*").items():
        mean = sum(n * u[name].double() for n, u in zip(sizes, uploads, strict=True)) / sum(sizes)
        assert torch.allclose(found.double(), mean, atol=1e-6)
        assert not torch.equal(uploads[0][name], uploads[1][name])


def test_the_points_need_as_many_features_as_classes(toy):
    with pytest.raises(pf.UsageError, match=r"its 4 points need K ≥ 4, and K is 3"):
        toy("alignfed", feature_dim=3)
    toy("alignfed", feature_dim=4).rounds(1)


def test_different_heads_are_refused(toy):
    with pytest.raises(pf.UsageError, match="it gives all clients one head"):
        toy("alignfed", models=toyfed.group(toyfed.CNN, toyfed.TWO_LAYERS))

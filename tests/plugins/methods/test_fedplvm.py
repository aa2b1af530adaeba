"""Tests of FedPLVM against loops: ℓ_α, ℓ_c, clusters, absent classes, averaged models."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import mean, mean_cross_entropy, numbers

import protofl as pf
from protofl.testing import toy as toyfed
from protofl_plugins.methods import fedplvm
from protofl_plugins.shared.clusters import finch


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length


@pytest.mark.parametrize(("alpha", "tau"), [(0.25, 0.07), (1.0, 0.5)])
def test_the_loss_is_the_papers(toy, randn, alpha, tau):
    options = {"lambda": 0.5, "alpha": alpha, "tau": tau}
    found = toy("fedplvm", set=options, models=toyfed.group(toyfed.PIXELS, K=36))
    P, classes = randn(5, 36, seed=1), [0, 0, 1, 3, 3]
    payload = pf.Payload(prototypes=P, classes=torch.tensor(classes))
    z, y = randn(6, 36, seed=2), [1, 1, 2, 0, 3, 3]
    record = found.prepare(0, payload)
    terms = found.terms(record, z, torch.tensor(y))
    sparsity = correction = 0.0
    for f, label in zip(numbers(z), y, strict=True):
        own = [p for p, c in zip(numbers(P), classes, strict=True) if c == label]
        if not own:
            continue
        e = [math.exp(max(cosine(f, p), 1e-4) ** alpha / tau) for p in numbers(P)]
        mine = sum(v for v, c in zip(e, classes, strict=True) if c == label)
        sparsity -= math.log(mine / sum(e)) / len(y)
        correction += 2 * (cosine(f, mean(own)) - 1) ** 2 / len(y)
    assert terms["sparsity"].item() == pytest.approx(0.5 * sparsity, rel=1e-9)
    assert terms["correction"].item() == pytest.approx(0.5 * correction, rel=1e-9)
    logits = numbers(record.model.head(z))
    assert terms["ce"].item() == pytest.approx(mean_cross_entropy(logits, y), rel=1e-9)


def test_negative_and_zero_cosines_have_finite_gradients():
    f = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    P, classes, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]), torch.zeros(4)
    loss = fedplvm.sparse_contrast(f, y.long(), P, classes, 0.25, 0.07)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(f.grad).all()
    assert f.grad[3].abs().max() > 0


@pytest.mark.parametrize("clusters", ["finch", "mean"])
def test_a_client_sends_the_clusters_of_each_class(toy, clusters):
    found = toy("fedplvm", set={"local": clusters})
    view = pf.Client(found.client(0), "fedplvm")
    sent = found.call("upload_payload", client=view)
    z, y = view.train_features()
    expected, classes = [], []
    for c in sorted({*y.tolist()}):
        own = z[y == c]
        rows = finch(own)[0] if clusters == "finch" else own.mean(0, keepdim=True)
        expected.append(rows)
        classes += [c] * len(rows)
    assert torch.allclose(sent["prototypes"], torch.cat(expected))
    assert sent["classes"].tolist() == classes
    assert sent.keys() == {"prototypes", "classes"}


@pytest.mark.parametrize("clusters", ["finch", "mean"])
def test_the_server_clusters_each_class_again(toy, randn, clusters):
    found = toy("fedplvm", set={"server": clusters})
    K = found.plan.info.feature_dim
    uploads = {
        i: pf.Payload(prototypes=randn(len(c), K, seed=i), classes=torch.tensor(c))
        for i, c in {0: [0, 0, 0, 3], 2: [0, 0, 3, 3, 3], 3: [0, 3, 3]}.items()
    }
    server = found.views()[1]
    result = found.call("server_aggregate", server=server, uploads=uploads)
    expected = []
    for c in (0, 3):
        rows = torch.cat([u["prototypes"][u["classes"] == c] for u in uploads.values()])
        expected.append(finch(rows)[0] if clusters == "finch" else rows.mean(0, keepdim=True))
    assert torch.allclose(result["prototypes"], torch.cat(expected), rtol=1e-9)
    assert result["classes"].tolist() == [0] * len(expected[0]) + [3] * len(expected[1])


def test_a_class_that_the_round_lacks_keeps_its_prototypes(toy, randn):
    found = toy("fedplvm")
    K = found.plan.info.feature_dim
    old = randn(3, K, seed=5)
    found.server.global_state |= {"prototypes": old, "classes": torch.tensor([1, 1, 2])}
    upload = pf.Payload(prototypes=randn(1, K, seed=6), classes=torch.tensor([2]))
    result = found.call("server_aggregate", server=found.views()[1], uploads={0: upload})
    assert result["classes"].tolist() == [1, 1, 2]
    assert torch.equal(result["prototypes"], torch.cat([old[:2], upload["prototypes"]]))


def test_models_are_averaged_where_all_are_alike(toy):
    found = toy("fedplvm", models=toyfed.group(toyfed.NORM))
    found.rounds(2)
    uploads = [pf.Payload.from_bytes(blob) for blob in found.pool.uploads(1).values()]
    n = [int(u["samples"]) for u in uploads]
    for key in (k for k in uploads[0] if k.startswith("model/") and "/buffer/" not in k):
        expected = sum(w * u[key].double() for w, u in zip(n, uploads, strict=True)) / sum(n)
        assert torch.allclose(found.server.global_state[key].double(), expected, atol=1e-6)
    assert "prototypes" in found.server.global_state


def test_models_of_several_architectures_are_not_averaged(toy):
    with pytest.raises(pf.UsageError, match="averages whole models"):
        toy("fedplvm", set={"share": "model"})


def test_the_learning_rate_is_the_papers_unless_given(tmp_path):
    found = toyfed.make_plan("fedplvm", tmp_path, lr=None)
    assert found.settings.lr == 0.01
    assert toyfed.make_plan("fedplvm", tmp_path, lr=0.03).settings.lr == 0.03

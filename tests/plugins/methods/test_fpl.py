"""Tests of FPL against loops and published code: CPCL, UPCR, clusters, averaged models."""

from __future__ import annotations

import math

import pytest
import torch
from slow_equations import mean, mean_cross_entropy, numbers

import protofl as pf
from protofl.data.batches import batch_bounds
from protofl.testing import toy as toyfed
from protofl_plugins.methods.fpl import FPL
from protofl_plugins.shared.clusters import contrast, finch

ONE_NET = toyfed.group(toyfed.PIXELS, K=36)


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("tau", [0.02, 0.5])
def test_the_loss_is_the_papers(toy, randn, variant, tau):
    found = toy("fpl", set={"tau": tau, "variant": variant}, models=ONE_NET)
    P, classes = randn(5, 36, seed=1), [0, 0, 1, 3, 3]
    payload = pf.Payload(prototypes=P, classes=torch.tensor(classes))
    z, y = randn(6, 36, seed=2), [1, 1, 2, 0, 3, 3]
    record = found.prepare(0, payload)
    terms = found.terms(record, z, torch.tensor(y))
    cpcl = upcr = 0.0
    for row, label in zip(numbers(z), y, strict=True):
        own = [p for p, c in zip(numbers(P), classes, strict=True) if c == label]
        if not own:  # class 2 has no prototype
            continue
        s = [cosine(row, p) / tau for p in numbers(P)]
        positive = sum(math.exp(v) for v, c in zip(s, classes, strict=True) if c == label)
        negative = sum(math.exp(v) for v, c in zip(s, classes, strict=True) if c != label)
        cpcl += math.log(1 + negative / positive) / len(y)  # the second line of Eq. 8
        upcr += sum((a - b) ** 2 for a, b in zip(row, mean(own), strict=True)) / len(y)
    assert terms.keys() == {"ce", "cpcl", "upcr"}
    assert terms["cpcl"].item() == pytest.approx(cpcl, rel=1e-9)
    upcr /= 36 if variant == "official" else 1
    assert terms["upcr"].item() == pytest.approx(upcr, rel=1e-9)
    logits = numbers(record.model.head(z))
    assert terms["ce"].item() == pytest.approx(mean_cross_entropy(logits, y), rel=1e-9)


def test_the_published_loss(toy):
    """The results of hierarchical_info_loss and calculate_infonce.

    WenkeHuang/RethinkFL at 74201b3, the mean over three samples at τ = 0.5.
    """
    found = toy("fpl", set={"tau": 0.5, "distance": "mse"}, models=toyfed.group(toyfed.PIXELS, K=3))
    P = [[1, 0, 0.2], [0.8, 0.3, 0], [0, 1, 0.1], [0.2, 0.1, 1], [0, 0.4, 0.9]]
    payload = pf.Payload(prototypes=torch.tensor(P).double(), classes=torch.tensor([0, 0, 1, 3, 3]))
    record = found.prepare(0, payload)
    z = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.7, 0.3], [0.1, 0.5, 0.6]]).double()
    terms = found.terms(record, z, torch.tensor([0, 1, 3]))
    assert terms["cpcl"].item() == pytest.approx(0.6490411758422852, rel=1e-5)
    assert (terms["cpcl"] + terms["upcr"]).item() == pytest.approx(0.694318970044454, rel=1e-5)


ANGLES = [0.0, 0.1, 0.9, 1.0, 2.0, 2.15, 3.0, 3.2]


def test_the_published_clusters():
    """The result of proto_aggregation of WenkeHuang/RethinkFL at 74201b3."""
    rows = torch.tensor([[math.cos(a), math.sin(a), 0.1 * i] for i, a in enumerate(ANGLES)])
    expected = [
        [0.7892290949821472, 0.43115782737731934, 0.15000000596046448],
        [-0.737947940826416, 0.45723551511764526, 0.550000011920929],
    ]
    torch.testing.assert_close(finch(rows)[0], torch.tensor(expected))
    assert len(finch(rows, last=False)[0]) == 4


def test_a_class_alone_has_nothing_to_contrast():
    s = torch.randn(3, 2, requires_grad=True)
    loss = contrast(s, torch.tensor([1, 1, 0]), torch.tensor([1, 1]))
    assert loss.abs().max() < 1e-6
    loss.sum().backward()
    assert torch.isfinite(s.grad).all()


@pytest.mark.parametrize("clusters", ["first", "finch", "mean"])
def test_the_server_clusters_each_class(toy, randn, clusters):
    found = toy("fpl", set={"clusters": clusters}, models=ONE_NET)
    found.rounds(1)
    uploads = {}
    for i, c in enumerate([[0, 3], [0], [0, 3], [0, 3]]):
        sent = pf.Payload.from_bytes(found.pool.uploads(0)[i])
        rows = {"prototypes": randn(len(c), 36, seed=i), "classes": torch.tensor(c)}
        uploads[i] = pf.Payload(sent | rows)
    result = found.call("server_aggregate", server=found.views()[1], uploads=uploads)
    for k in (0, 3):
        rows = torch.cat([u["prototypes"][u["classes"] == k] for u in uploads.values()])
        if clusters == "mean":
            expected = rows.mean(0, keepdim=True)
        else:
            expected = finch(rows, last=clusters == "finch")[0]
        assert torch.allclose(result["prototypes"][result["classes"] == k], expected)


@pytest.mark.parametrize("absent", ["keep", "forget"])
def test_a_class_that_the_round_lacks(toy, randn, absent):
    found = toy("fpl", set={"absent": absent}, models=ONE_NET)
    found.rounds(1)
    old = randn(3, 36, seed=5)
    found.server.global_state |= {"prototypes": old, "classes": torch.tensor([1, 1, 2])}
    sent = pf.Payload.from_bytes(found.pool.uploads(0)[0])
    sent |= {"prototypes": randn(1, 36, seed=6), "classes": torch.tensor([2])}
    result = found.call("server_aggregate", server=found.views()[1], uploads={0: sent})
    rows, classes = [sent["prototypes"]], [2]
    if absent == "keep":
        rows, classes = [old[:2], *rows], [1, 1, *classes]
    assert result["classes"].tolist() == classes
    assert torch.equal(result["prototypes"], torch.cat(rows))


def test_what_travels(toy):
    found = toy("fpl", models=toyfed.group(toyfed.NORM))
    lines = found.rounds(2)
    view, _ = found.views(1)
    sent = pf.Payload.from_bytes(found.pool.uploads(1)[1])
    extra = {k for k in sent if not k.startswith("model/")}
    assert extra == {"samples", "prototypes", "classes"}
    assert torch.allclose(sent["prototypes"], view.class_prototypes()["prototypes"])
    first, second = (pf.Payload.from_bytes(found.pool.downloads(n)[1]) for n in (0, 1))
    assert all(k.startswith("model/") for k in first)
    assert {k for k in second if not k.startswith("model/")} == {"prototypes", "classes"}
    # The traffic table of the page.
    weights = sum(p.numel() for p in found.client(0).model.parameters())
    K, clients = found.plan.info.feature_dim, found.plan.info.num_clients
    rows = sum(
        len(pf.Payload.from_bytes(blob)["classes"]) for blob in found.pool.uploads(1).values()
    )
    assert lines[1]["upload_floats"] == clients * weights + K * rows
    assert lines[0]["download_floats"] == clients * weights
    assert lines[1]["download_floats"] == clients * (weights + K * len(second["classes"]))


def test_models_are_averaged_by_samples(toy):
    found = toy("fpl", models=toyfed.group(toyfed.NORM))
    found.rounds(2)
    uploads = [pf.Payload.from_bytes(blob) for blob in found.pool.uploads(1).values()]
    n = [int(u["samples"]) for u in uploads]
    assert len({*n}) > 1
    for key in (k for k in uploads[0] if k.startswith("model/") and "/buffer/" not in k):
        expected = sum(w * u[key].double() for w, u in zip(n, uploads, strict=True)) / sum(n)
        assert torch.allclose(found.server.global_state[key].double(), expected, atol=1e-6)


def test_without_its_terms_it_is_fedavg(toy):
    drop = ["cpcl", "upcr"]
    found = toy("fpl", models=ONE_NET, drop=drop)
    found.rounds(3)
    other = toy("fedavg", models=ONE_NET)
    other.rounds(3)
    for key, value in other.server.global_state.items():
        assert torch.equal(found.server.global_state[key], value)


def test_prototypes_during_training(toy):
    """Online, sums are over the steps of training; a step sees the weights before its update."""
    found = toy("fpl", set={"collect": "online"}, models=ONE_NET)
    found.rounds(1)
    # An extractor without weights gives the same features before and after training.
    view, _ = found.views(2)
    sent = pf.Payload.from_bytes(found.pool.uploads(0)[2])
    assert torch.allclose(sent["prototypes"], view.class_prototypes()["prototypes"], atol=1e-6)
    norm = toy("fpl", set={"collect": "online"}, models=toyfed.group(toyfed.NORM))
    norm.rounds(1)
    view, _ = norm.views(2)
    sent = pf.Payload.from_bytes(norm.pool.uploads(0)[2])
    assert not torch.allclose(sent["prototypes"], view.class_prototypes()["prototypes"])


def test_prototypes_of_the_last_epoch(toy, randn):
    """The published code empties its lists at the start of each epoch."""
    found = toy("fpl", set={"collect": "online"}, models=ONE_NET)
    record = found.prepare(3)
    record.steps, record.epoch_steps = 6, 2
    client = pf.Client(record, "fpl")
    batches = [(randn(5, 36, seed=step), torch.tensor([0, 1, 2, 3, 3])) for step in range(6)]
    for z, y in batches:
        batch = pf.Batch(torch.empty(5, 0), y, torch.arange(5))
        found.lifecycle("after_batch", client=client, batch=batch, output=pf.Output(z, z))
    z, y = (torch.cat(parts) for parts in zip(*batches[4:], strict=True))
    sent = found.call("upload_payload", client=client)
    wanted = torch.stack([z[y == c].mean(0) for c in range(4)])
    torch.testing.assert_close(sent["prototypes"], wanted)


@pytest.mark.parametrize("epochs", [3, 1.5, 0.5])
def test_a_client_knows_the_steps_of_an_epoch(toy, epochs):
    found = toy("fpl", models=ONE_NET, local_epochs=epochs, batch_size=7)
    found.rounds(1)
    client = found.client(0)
    batches = len(batch_bounds(len(client.train), 7, False))
    assert batches > 1
    assert client.epoch_steps == math.ceil(min(1, epochs) * batches)


def test_several_architectures_are_refused(toy):
    with pytest.raises(pf.UsageError, match="averages whole models"):
        toy("fpl")


def test_the_learning_rate_is_the_papers_unless_given(tmp_path):
    assert toyfed.make_plan("fpl", tmp_path, models=ONE_NET, lr=None).settings.lr == 0.01
    assert toyfed.make_plan("fpl", tmp_path, models=ONE_NET, lr=0.03).settings.lr == 0.03


def test_variants():
    paper, official = FPL.Config(), FPL.Config(variant="official")
    read = ("collect", "clusters", "distance", "absent")
    assert [getattr(paper, name) for name in read] == ["eval", "first", "squared", "keep"]
    assert [getattr(official, name) for name in read] == ["online", "finch", "mse", "forget"]

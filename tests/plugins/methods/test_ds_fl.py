"""Tests of DS-FL against loops: aggregation, distillation, rounds, the server's own model."""

from __future__ import annotations

import math

import pytest
import torch
from public_toy import (
    DoubleServer,
    Public,
    check_the_papers_run,
    logits,
    payload,
    slow_log_softmax,
    slow_scores,
    slow_training,
)
from toy_federation import batch_of

from protofl import UsageError
from protofl_plugins.methods.ds_fl import DSFL


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def slow_aggregate(p, T):
    """Return ERA with temperature T, or the mean if T is None."""
    rows = []
    for n in range(p.shape[1]):
        mean = [sum(p[i, n, c].item() for i in range(len(p))) / len(p) for c in range(p.shape[2])]
        powers = [math.exp(v / T) for v in mean] if T else mean
        rows.append([v / sum(powers) for v in powers])
    return rows


@pytest.mark.parametrize(
    ("set", "T"), [({}, 0.1), ({"T": 0.5}, 0.5), ({"aggregate": "mean"}, None)]
)
def test_aggregation(set, T):
    p = logits(3, 5, 4).softmax(2)
    uploads = {i: payload(public_probabilities=p[i]) for i in range(3)}
    found = DSFL().server_aggregate(DoubleServer(DSFL.Config(**set)), uploads)
    expected = torch.tensor(slow_aggregate(p, T), dtype=torch.float64)
    assert torch.allclose(found["public_probabilities"], expected, rtol=1e-12)


def test_distil():
    batch, output = batch_of(6, 4, 3)
    batch.phase, batch.y, batch.index = "distil", torch.empty(0), torch.tensor([4, 0, 2, 7, 5, 1])
    p = logits(1, 8, 4)[0].softmax(1)
    terms = DSFL().local_loss(batch, output, {"scores": p})
    expected = 0.0
    for scores, row in zip(output.logits, batch.index.tolist(), strict=True):
        for c, value in enumerate(slow_log_softmax(list(scores))):
            expected -= p[row, c].item() * value.item() / 6
    assert set(terms) == {"distil"}
    assert terms["distil"].item() == pytest.approx(expected, rel=1e-12)


def test_server_model():
    server = DoubleServer(DSFL.Config(server_model="own", server_epochs=2, server_lr=0.02))
    DSFL().setup_server(server)
    model, p = server.build("own"), logits(3, 12, 4).softmax(2)
    uploads = {i: payload(public_probabilities=p[i]) for i in range(3)}
    assert not DSFL().server_train(server, uploads)
    target = slow_aggregate(p, 0.1)

    def loss(n):
        scores = slow_log_softmax(slow_scores(model, server.public.x[n])[1])
        return -sum(t * v for t, v in zip(target[n], scores, strict=True))

    slow_training(model, server.orders["shuffle"], loss, lambda step: 0.02, kind="adam")
    for ours, theirs in zip(server.modules["model"].parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_rounds(data_dir):
    toy = Public("ds-fl", data_dir, dry=True).after(2)
    assert all(not job.down for job in toy.jobs(0) + toy.jobs(1))
    p = torch.stack([job.up["public_probabilities"] for job in toy.jobs(1)])
    assert torch.allclose(p.sum(2), torch.ones(4, 20))
    for job in toy.jobs(1, "after_server"):
        expected = torch.tensor(slow_aggregate(p, 0.1))
        assert torch.allclose(job.down["public_probabilities"], expected, atol=1e-5)
    assert "server_test_accuracy" not in toy.lines[1]["extra"]


def test_server_model_is_reported(data_dir):
    toy = Public("ds-fl", data_dir, {"server_model": "normed"}, dry=True).after(1)
    assert 0 <= toy.lines[0]["extra"]["server_test_accuracy"] <= 1


def test_epochs_and_refusals(data_dir):
    plan = Public("ds-fl", data_dir, {"epochs": "paper"}).plan
    assert plan.settings.local_epochs == 10
    check_the_papers_run("ds-fl", data_dir)
    assert plan.composition.phases(plan.info)[1].epochs == 20
    for set, options, text in (
        ({}, {"public": 0}, "--public N"),
        ({"server_model": "resnet99"}, {}, "one of these works: cnn4, dense, normed"),
    ):
        with pytest.raises(UsageError) as caught:
            Public("ds-fl", data_dir, set, **options)
        assert text in str(caught.value)

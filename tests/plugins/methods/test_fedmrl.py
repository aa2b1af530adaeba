"""Tests of FedMRL against loops: fusion, nested losses, payloads, inference."""

from __future__ import annotations

import pytest
import torch
from slow_equations import affine, mean_cross_entropy, numbers

import protofl as pf
from protofl.testing import toy as toyfed

D_1 = 3


@pytest.fixture
def found(toy):
    return lambda **options: toy("fedmrl", set={"auxiliary_dim": D_1, **options})


def slow_fused(client, x, own):
    """Apply P_i to the features of both models, row by row."""
    both = [
        a + b for a, b in zip(numbers(client.module("auxiliary").features(x)), own, strict=True)
    ]
    P = client.module("P")
    return affine(both, numbers(P.weight), numbers(P.bias))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0)])
def test_the_loss_is_nested(found, weights):
    federation = found(m_G=weights[0], m_F=weights[1])
    record = federation.prepare(0)
    client, y = pf.Client(record, "fedmrl"), [0, 1, 2, 3]
    for name in ("auxiliary", "P"):
        client.module(name).double()
    x = torch.rand(4, *client.sample.shape, dtype=torch.float64)
    with torch.no_grad():
        z = client.features(x)
        shared, own = client.module("auxiliary").head, record.model.head
        batch = pf.Batch(x, torch.tensor(y), torch.arange(4))
        terms = federation.call(
            "local_loss",
            client=client,
            batch=batch,
            output=pf.Output(z, client.head(z)),
            constants={},
        )
        fine = slow_fused(client, x, numbers(z))
    coarse = affine([row[:D_1] for row in fine], numbers(shared.weight), numbers(shared.bias))
    assert terms["coarse"].item() == pytest.approx(weights[0] * mean_cross_entropy(coarse, y))
    scores = affine(fine, numbers(own.weight), numbers(own.bias))
    assert terms["fine"].item() == pytest.approx(weights[1] * mean_cross_entropy(scores, y))
    decided = federation.call("inference", client=client, x=x)
    assert torch.allclose(decided.detach(), torch.tensor(scores, dtype=torch.float64))


def test_one_backward_pass_trains_all_three(found):
    federation = found()
    before = pf.Client(federation.client(0), "fedmrl").module("P").weight.clone()
    (line,) = federation.rounds(1)
    assert not torch.equal(before, pf.Client(federation.client(0), "fedmrl").module("P").weight)
    assert line["loss_terms"].keys() == {"coarse", "fine"}


def test_the_shared_model_alone_travels_and_is_the_weighted_mean(found):
    federation = found()
    (line,) = federation.rounds(1)
    net = pf.Client(federation.client(0), "fedmrl").module("auxiliary")
    each = sum(p.numel() for p in net.parameters())
    assert line["upload_floats"] == line["download_floats"] == 4 * each
    uploads = [pf.Payload.from_bytes(blob) for blob in federation.pool.uploads(0).values()]
    total = sum(int(upload["samples"]) for upload in uploads)
    for key, value in federation.server.global_state.select("auxiliary/*").items():
        if value.is_floating_point():
            mean = sum(int(u["samples"]) / total * u[key].double() for u in uploads)
            assert torch.allclose(value.double(), mean, atol=1e-6)


@pytest.mark.parametrize(("K", "d_1"), [(8, 8), (64, 64), (128, 128), (200, 128)])
def test_the_shared_model_has_128_features_or_k(toy, K, d_1):
    federation = toy("fedmrl", models=toyfed.group(toyfed.CNN, toyfed.NORM, K=K))
    assert federation.plan.composition.configs["fedmrl"].auxiliary_dim == d_1
    client = pf.Client(federation.client(0), "fedmrl")
    assert client.module("auxiliary").feature_dim == d_1
    assert client.module("P").weight.shape == (K, d_1 + K)


@pytest.mark.parametrize("models", ["mlp", "cnn1d", "text"])
def test_it_runs_on_tables_series_and_tokens(toy, models):
    """Their K is 64, less than HtFLlib's d_1 of 128."""
    sample = {
        "mlp": pf.datasets.SampleSpec((5,), "table"),
        "cnn1d": pf.datasets.SampleSpec((2, 30), "series"),
        "text": pf.datasets.SampleSpec((8,), "tokens", vocabulary=20, padding=0),
    }[models]
    data = toyfed.make_data(sample, [[5, 4], [6, 6], [3, 4]])
    (line,) = toy("fedmrl", models=models, data=data).rounds(1)
    assert line["loss_terms"].keys() == {"coarse", "fine"}


def test_a_width_that_cannot_be_nested_is_refused(toy):
    with pytest.raises(pf.UsageError, match="auxiliary_dim=9 is wider than K = 8"):
        toy("fedmrl", set={"auxiliary_dim": 9})

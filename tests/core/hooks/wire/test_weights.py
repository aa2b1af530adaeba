"""Tests of packing, loading and averaging weights in payloads."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from protofl import Payload
from protofl.errors import MissingKey
from protofl.models import average_weights, load_weights, pack_weights


def net(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    with torch.random.fork_rng():
        module(torch.randn(5, 1, 4, 4))
    return module


@pytest.fixture(autouse=True)
def same_global_stream():
    with torch.random.fork_rng():
        yield


def test_packing_names_parameters_and_buffers():
    module = net(0)
    payload = pack_weights(module, "model")
    assert {k for k in payload if "/buffer/" not in k} == {
        f"model/{name}" for name, _ in module.named_parameters()
    }
    assert payload["model/buffer/1.num_batches_tracked"] == 1
    assert payload.floats == sum(p.numel() for p in module.parameters())
    assert not any("/buffer/" in key for key in pack_weights(module, "model", buffers=False))


def test_packing_copies():
    module = net(0)
    payload = pack_weights(module, "model")
    before = payload["model/3.weight"].clone()
    with torch.no_grad():
        module[3].weight.add_(1)
    assert torch.equal(payload["model/3.weight"], before)
    assert not payload["model/3.weight"].requires_grad


def test_loading_what_was_packed():
    source, target = net(0), net(1).to(memory_format=torch.channels_last)
    assert not torch.equal(source[3].weight, target[3].weight)
    load_weights(target, Payload.from_bytes(pack_weights(source, "m").to_bytes()), "m")
    for (name, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    x = torch.randn(2, 1, 4, 4)
    assert torch.allclose(source.eval()(x), target.eval()(x))
    assert target[3].weight.requires_grad


def test_buffers_that_were_not_sent_stay():
    target = net(1)
    kept = target[1].running_mean.clone()
    load_weights(target, pack_weights(net(0), "m", buffers=False), "m")
    assert torch.equal(target[1].running_mean, kept)
    assert torch.equal(target[3].weight, net(0)[3].weight)


def test_loading_what_does_not_fit():
    payload = pack_weights(net(0), "m")
    with pytest.raises(ValueError, match=r"m/3.weight. .*\[3, 7\].*\[3, 8\]"):
        load_weights(net(1), payload | {"m/3.weight": torch.zeros(3, 7)}, "m")
    del payload["m/3.bias"]
    with pytest.raises(MissingKey) as caught:
        load_weights(net(1), payload, "m")
    assert caught.value.key == "m/3.bias"


def uploads(count=4):
    generator = torch.Generator().manual_seed(5)
    return [
        Payload(
            {
                "head/weight": torch.randn(3, 2, generator=generator),
                "head/bias": torch.randn(3, generator=generator, dtype=torch.float64),
                "head/buffer/mean": torch.randn(2, generator=generator),
                "head/buffer/steps": torch.tensor([7, 3, 11, 5][i % 4]),
                "head/buffer/seen": torch.tensor([i == 1, False]),
                "samples": torch.tensor(i + 1),
            }
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    "weights", [None, torch.tensor([5, 1, 3, 7]), torch.tensor([0.2, 0.0, 0.3, 9.0])]
)
def test_the_mean_against_a_loop(weights):
    sent = uploads()
    mean = average_weights(sent, "head", weights)
    assert set(mean) == {k for k in sent[0] if k.startswith("head/")}
    share = [1.0] * 4 if weights is None else weights.tolist()
    for name in ("head/weight", "head/bias", "head/buffer/mean"):
        assert mean[name].dtype == sent[0][name].dtype
        flat = [upload[name].double().flatten().tolist() for upload in sent]
        for position, value in enumerate(mean[name].double().flatten().tolist()):
            slow = sum(s * f[position] for s, f in zip(share, flat, strict=True)) / sum(share)
            assert value == pytest.approx(slow, rel=1e-5, abs=1e-6)
    assert mean["head/buffer/steps"] == 11
    assert mean["head/buffer/steps"].dtype == torch.int64
    assert mean["head/buffer/seen"].tolist() == [True, False]


def test_the_order_of_the_uploads_does_not_matter():
    sent, weights = uploads(3), torch.tensor([5, 1, 3])
    expected = average_weights(sent, "head", weights)
    for order in itertools.permutations(range(3)):
        found = average_weights([sent[i] for i in order], "head", weights[list(order)])
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def test_the_mean_of_one_is_itself():
    (sent,) = uploads(1)
    for name, value in average_weights([sent], "head", torch.tensor([3])).items():
        assert torch.equal(value, sent[name])
        assert value.data_ptr() != sent[name].data_ptr()


def test_what_can_not_be_averaged():
    sent = uploads(2)
    with pytest.raises(MissingKey) as caught:
        average_weights(sent, "model")
    assert caught.value.key == "model/*"
    sent[1]["head/weight"] = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"head/weight.*\[3, 2\].*\[4, 2\]"):
        average_weights(sent, "head")


@pytest.mark.parametrize("lacking", [0, 1])
def test_an_upload_that_lacks_a_tensor(lacking):
    sent = uploads(2)
    del sent[lacking]["head/bias"]
    with pytest.raises(MissingKey) as caught:
        average_weights(sent, "head")
    assert caught.value.key == "head/bias"

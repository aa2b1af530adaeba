"""Tests of FedBN: all layers but BatchNorm are averaged, BatchNorm stays on its client."""

from __future__ import annotations

import plain_rounds as plain
import pytest
import torch
from slow_equations import numbers
from torch import nn

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.methods.fedbn import batch_norm_names, shared_layers

ONE = toyfed.group(toyfed.NORM)
SHARED = ["extractor.1.bias", "extractor.1.weight", "head.bias", "head.weight"]
"""The weights of toy.NORM without its BatchNorm layer, ``extractor.2``."""


def test_two_rounds_by_hand(toy):
    with double_precision():
        found = plain.federation(toy, "fedbn")
        models, samples = plain.own_models(found), plain.samples_of(found)
        shared = {name: plain.server_model(found).state_dict()[name] for name in SHARED}
        found.rounds(2)
        for _ in range(2):
            for model, (x, y) in zip(models, samples, strict=True):
                model.load_state_dict(model.state_dict() | shared)
                plain.sgd(model, x, y)
            for name in SHARED:
                shared[name] = sum(model.state_dict()[name] for model in models) / 4
        for number, model in enumerate(models):
            plain.assert_equal_states(found.client(number).model.state_dict(), model.state_dict())
        state = {f"model/{name}": tensor for name, tensor in shared.items()}
        plain.assert_equal_states(dict(found.server.global_state), state)


def test_batch_norm_never_travels(toy):
    found = toy("fedbn", models=ONE)
    found.rounds(2)
    keys = {f"model/{name}" for name in SHARED}
    for round in (0, 1):
        assert all(toyfed.header(b).keys() == keys for b in found.pool.downloads(round).values())
        for blob in found.pool.uploads(round).values():
            assert toyfed.header(blob).keys() == keys | {"samples"}


def test_evaluation_uses_shared_layers_and_own_batch_norm(toy):
    found = toy("fedbn", models=ONE)
    found.rounds(2)
    kept = [found.client(n).model.extractor[2].state_dict() for n in range(4)]
    kept = [{name: tensor.clone() for name, tensor in state.items()} for state in kept]
    assert not any(torch.equal(kept[0]["weight"], other["weight"]) for other in kept[1:])
    assert not any(torch.equal(kept[0]["running_var"], o["running_var"]) for o in kept[1:])
    for number in range(4):
        model = found.prepare(number, found.server.global_state, double=False).model
        assert toyfed.same(dict(model.extractor[2].state_dict()), kept[number])
        for name in SHARED:
            assert torch.equal(model.state_dict()[name], found.server.global_state[f"model/{name}"])


@pytest.mark.parametrize("mode", ["uniform", "weighted"])
def test_the_average(toy, randn, mode):
    found = toy("fedbn", models=ONE, set={"aggregate": mode})
    counts, uploads = {0: 3, 2: 10, 3: 1}, {}
    for number, n in counts.items():
        upload = shared_layers(found.client(0).model)
        for key in upload:
            upload[key] = randn(*upload[key].shape, seed=number)
        uploads[number] = pf.Payload(upload, samples=torch.tensor(n))
    server = found.views()[1]
    result = found.call("server_aggregate", server=server, uploads=uploads)
    shares = [n / 14 for n in counts.values()] if mode == "weighted" else [1 / 3] * 3
    for key, tensor in result.items():
        rows = [numbers(upload[key].flatten()) for upload in uploads.values()]
        slow = [
            sum(s * row[k] for s, row in zip(shares, rows, strict=True))
            for k in range(len(rows[0]))
        ]
        assert numbers(tensor.flatten()) == pytest.approx(slow, rel=1e-12)


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn, self.out = nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)


def _filled(number):
    """Return a net with sin(j + 10·number) as the j-th number of its state."""
    net, place = _Net(), 0
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            values = torch.sin(torch.arange(place, place + tensor.numel()).double() + 10 * number)
            tensor.copy_(values.reshape(tensor.shape))
            place += tensor.numel()
    return net


def test_the_published_code_gives_the_same_average(toy):
    """Figures of `communication` of federated/fed_digits.py, med-air/FedBN at 2fa38ad."""
    found = toy("fedbn", models=ONE)
    nets = [_filled(number) for number in (1, 2, 3)]
    uploads = {
        k: pf.Payload(shared_layers(net), samples=torch.tensor(k + 1)) for k, net in enumerate(nets)
    }
    result = found.call("server_aggregate", server=found.views()[1], uploads=uploads)
    assert numbers(result["model/fc.weight"].flatten()) == pytest.approx(
        [-0.206369, -0.189124, 0.002001, 0.191286, 0.204704, 0.029918], abs=1e-6
    )
    assert numbers(result["model/fc.bias"]) == pytest.approx(
        [-0.172375, -0.216187, -0.061238], abs=1e-6
    )
    assert numbers(result["model/out.bias"]) == pytest.approx([-0.027933, 0.173662], abs=1e-6)
    assert not any("bn" in key for key in result)


def test_batch_norm_layers_are_found_by_their_type():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(2))
    assert batch_norm_names(net) == {
        "model/1.weight",
        "model/1.bias",
        "model/buffer/1.running_mean",
        "model/buffer/1.running_var",
        "model/buffer/1.num_batches_tracked",
    }


def test_runs_without_batch_norm_are_refused(toy):
    with pytest.raises(pf.UsageError, match=r"cnn has none.*--models resnet18.*or fedavg"):
        toy("fedbn", models=toyfed.group(toyfed.CNN))
    with pytest.raises(pf.UsageError, match="2 architectures"):
        toy("fedbn")

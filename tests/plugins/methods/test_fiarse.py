"""Tests of FIARSE against loops over numbers: thresholds, masked gradients, mean changes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import double_precision
from protofl_plugins.models.masked import THETA, mask, masked, set_thresholds, unmask

SIZES = (1.0, 0.5, 0.25, 0.1)


@pytest.fixture
def found(toy):
    data = toyfed.make_images(toyfed.MIXED)

    def made(net=toyfed.NORM, method="fiarse", **options):
        if method == "fiarse":
            options = {"sizes": "1,0.5,0.25,0.1", **options}
        return toy(method, set=options, models=toyfed.group(net), data=data)

    return made


def thetas(federation, client):
    layers = federation.client(client).model.modules()
    return [layer.get_buffer(THETA).item() for layer in layers if THETA in layer._buffers]


def masked_names(model):
    """Return the parameter names of each masked layer."""
    return [
        [f"{path}.{name}" for name in layer._parameters if layer._parameters[name] is not None]
        for path, layer in model.named_modules()
        if THETA in layer._buffers
    ]


@pytest.mark.parametrize("scope", ["net", "layer"])
def test_theta_keeps_the_largest_share(found, scope):
    federation = found(scope=scope)
    federation.rounds(1)
    global_state = federation.server.global_state
    for client, size in enumerate(SIZES):
        record = federation.prepare(client, pf.Payload(global_state.select("model/*")))
        layers = masked_names(record.model)
        assert [len(own) for own in layers] == [2, 2]  # norm layers have no θ
        numbers = [
            sorted(abs(v) for n in own for v in global_state[f"model/{n}"].flatten().tolist())
            for own in layers
        ]
        groups = [sorted(itertools.chain(*numbers))] * 2 if scope == "net" else numbers
        wanted = [0.0 if size == 1 else g[-max(1, int(len(g) * size))] for g in groups]
        assert thetas(federation, client) == wanted


def test_the_gradient_goes_through_the_mask():
    with double_precision():
        w = torch.tensor([0.5, -0.3, 0.2, -0.1, 0.0], requires_grad=True)
        theta = torch.tensor(0.2)
        G = torch.tensor([1.0, 2.0, -3.0, 4.0, 5.0])
        value = masked(w, theta)
        (value * G).sum().backward()
        for number, g, v, own in zip(
            w.tolist(), G.tolist(), value.tolist(), w.grad.tolist(), strict=True
        ):
            kept = abs(number) >= 0.2
            assert v == (number if kept else 0.0)
            slope = 1 + 2 * 0.2 * abs(number) / (abs(number) + 0.2) ** 2
            assert own == pytest.approx(g * slope if kept else 0.0, rel=1e-9)


def test_theta_0_is_the_whole_net():
    with double_precision():
        w = torch.tensor([0.5, -0.3, 0.0], requires_grad=True)
        (masked(w, torch.tensor(0.0)) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        assert w.grad.tolist() == [1.0, 2.0, 3.0]


def test_an_unmasked_net_is_the_plain_one():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x, state = torch.randn(3, 4), {name: value.clone() for name, value in net.state_dict().items()}
    plain = net(x)
    mask(net)
    set_thresholds(net, 0.3, "net")
    assert not torch.equal(net(x), plain)
    unmask(net)
    assert torch.equal(net(x), plain) and net.state_dict().keys() == state.keys()
    assert type(net[0]) is torch.nn.Linear and isinstance(
        net.get_parameter("0.weight"), torch.nn.Parameter
    )


@pytest.mark.parametrize("net", [toyfed.CNN, toyfed.NORM])
def test_a_step_on_a_masked_net_is_that_of_a_plain_net(found, net):
    """The plain net has the weights w∘m; its gradients are masked and scaled afterwards."""
    with double_precision():
        record = found(net).client(2)
        plain = net.build(record.info.sample, 4, record.info.feature_dim)
        model = net.build(record.info.sample, 4, record.info.feature_dim)
        model.load_state_dict(plain.state_dict())
        x, y = record.test.inputs(), record.test.y[: len(record.test)]
        mask(model)
        set_thresholds(model, 0.4, "net")
        theta = next(layer for layer in model.modules() if THETA in layer._buffers).theta.item()
        inside = {*itertools.chain(*masked_names(model))}
        w = {name: p.detach().clone() for name, p in plain.named_parameters()}
        with torch.no_grad():
            for name, p in plain.named_parameters():
                if name in inside:
                    p[p.abs() < theta] = 0
        y = y.new_tensor([n % 4 for n in range(len(x))])
        parameters = dict(plain.named_parameters())
        wanted = torch.autograd.grad(cross_entropy(plain(x), y), [*parameters.values()])
        own = dict(model.named_parameters())
        assert [*own] == [*parameters]
        given = torch.autograd.grad(cross_entropy(model(x), y), [*own.values()])
        torch.testing.assert_close(model(x), plain(x), atol=1e-9, rtol=1e-9)
        for name, a, b in zip(own, given, wanted, strict=True):
            size = w[name].abs()
            scale = (size >= theta) * (1 + 2 * theta * size / (size + theta) ** 2)
            scale = scale if name in inside else torch.ones_like(size)
            torch.testing.assert_close(a, b * scale, atol=1e-9, rtol=1e-9)


def test_attention_and_embeddings_are_masked():
    net = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.TransformerEncoderLayer(8, 2, 16))
    tokens = torch.arange(6).reshape(2, 3)
    before = net(tokens)
    mask(net)
    torch.testing.assert_close(net(tokens).shape, before.shape)
    names = {*itertools.chain(*masked_names(net))}
    assert {"0.weight", "1.self_attn.in_proj_weight", "1.self_attn.out_proj.weight"} < names
    set_thresholds(net, 0.3, "layer")
    named = dict(net.named_parameters())
    found = torch.autograd.grad(net(tokens).square().sum(), [*named.values()], allow_unused=True)
    for name, gradient in zip(named, found, strict=True):
        if name in names and gradient is not None and named[name].dim() > 1:
            assert (gradient == 0).double().mean() > 0.6, name


@pytest.mark.parametrize("aggregate", ["uniform", "weighted"])
def test_the_server_adds_the_mean_of_changes_that_are_not_0(found, aggregate):
    with double_precision():
        federation = found(aggregate=aggregate, server_rate=0.5)
        federation.rounds(1)
        old = {k: v.clone() for k, v in federation.server.global_state.select("model/*").items()}
        federation.rounds(1)
        uploads = [pf.Payload.from_bytes(b) for b in federation.pool.uploads(1).values()]
        zeros = 0
        for key, before in old.items():
            now = federation.server.global_state[key].flatten().tolist()
            changes = [u[key.replace("model/", "model_update/", 1)].flatten() for u in uploads]
            if not before.is_floating_point():
                assert now == (before.flatten() + max(changes)).tolist()
                continue
            rate = 1.0 if "/buffer/" in key else 0.5
            for place, value in enumerate(before.flatten().tolist()):
                total = weights = 0.0
                for upload, change in zip(uploads, changes, strict=True):
                    own = change[place].item()
                    if own == 0:
                        zeros += 1
                        continue
                    p = int(upload["samples"]) if aggregate == "weighted" else 1
                    total, weights = total + p * own, weights + p
                wanted = value + (rate * total / weights if weights else 0.0)
                assert now[place] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert zeros > 50


def test_a_client_changes_only_its_part(found):
    federation = found()
    federation.rounds(2)
    W = federation.pool.downloads(1)
    uploads = federation.pool.uploads(1)
    for client, size in enumerate(SIZES):
        sent = pf.Payload.from_bytes(uploads[client])
        whole = pf.Payload.from_bytes(W[client])
        layers = masked_names(federation.client(client).model)
        names = [*itertools.chain(*layers)]
        w = torch.cat([whole[f"model/{n}"].abs().flatten() for n in names])
        change = torch.cat([sent[f"model_update/{n}"].flatten() for n in names])
        theta = w.sort(descending=True).values[max(1, int(len(w) * size)) - 1]
        assert change.any() and not change[w < (0 if size == 1 else theta)].any()
        assert not any(key.endswith(THETA) for key in sent)
        norms = [k for k in sent if k.startswith("model_update/") and k[13:] not in names]
        assert norms and all(sent[key].any() for key in norms if "buffer" not in key)


def test_size_1_is_fedavg(found):
    """Equal up to rounding: FedAvg averages weights, FIARSE averages their changes."""
    with double_precision():
        one = found(sizes="1", aggregate="weighted")
        other = found(method="fedavg")
        for federation in (one, other):
            federation.rounds(2)
        for key, value in other.server.global_state.select("model/*").items():
            torch.testing.assert_close(
                one.server.global_state[key], value, atol=1e-9, rtol=1e-9, msg=key
            )


def test_theta_is_in_a_checkpoint_and_in_no_upload(found):
    federation = found()
    federation.rounds(1)
    client = pf.Client(federation.client(2), "fiarse")
    assert thetas(federation, 2)[0] > 0
    assert any(name.endswith(THETA) for name, _ in client.module("model").named_buffers())


@pytest.mark.parametrize(
    ("sizes", "word"), [("1,0", "0"), ("1.5", "1.5"), ("a", "a"), ("1,,0.5", ""), ("nan", "nan")]
)
def test_bad_sizes_are_refused(found, sizes, word):
    with pytest.raises(pf.UsageError, match=rf"size '{word}' is not a number above 0"):
        found(sizes=sizes)


def test_different_nets_are_refused(toy):
    with pytest.raises(pf.UsageError, match="averages whole models"):
        toy("fiarse")

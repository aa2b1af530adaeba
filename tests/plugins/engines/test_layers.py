"""Tests of the faster layers for training: PyTorch's results, and where they apply."""

from __future__ import annotations

from itertools import product as pairs
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from protofl_plugins.engines import kernels, layers, products
from protofl_plugins.engines.updates import Update

GEOMETRY = [
    (kernel, stride, padding, size)
    for kernel, stride, padding, size in pairs(
        [(1, 1), (3, 3), (2, 3), (5, 5)], [1, 2, 3], [0, 1, 2], [(1, 1), (2, 2), (4, 3), (5, 4)]
    )
    if all(side + 2 * padding >= k for side, k in zip(size, kernel, strict=True))
]


def job_of(model, device="cpu", precision="fp32", **options):
    """Return the attributes of a `pf.backends.TrainJob` that the layers read."""
    given = {
        "device": torch.device(device),
        "precision": precision,
        "whole": lambda: model,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": None,
        "clip": 0.0,
        "plain": True,
        "groups": [([*model.parameters()], 0.1)],
    }
    return SimpleNamespace(**given | options)


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def convolution(kernel, stride, padding, *, groups=1, bias=True):
    torch.manual_seed(0)
    channels = 4 if groups > 1 else 3
    layer = nn.Conv2d(channels, 4, kernel, stride, padding, groups=groups, bias=bias)
    return layer.double().to(memory_format=torch.channels_last)


def gradients(layer, x):
    """Return the output, its gradients, and gradients of gradients."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    plain = torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()], retain_graph=True)
    first = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), [layer.weight])
    return [y, *plain, *first, *second]


def assert_same(layer, x, taken=True):
    expected = gradients(layer, x)
    with layers.FastLayers(job_of(layer)).taken():
        assert ("forward" in vars(layer)) == taken
        found = gradients(layer, x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("kernel, stride, padding, size", GEOMETRY)
def test_convolutions_of_every_geometry(kernel, stride, padding, size):
    layer = convolution(kernel, stride, padding)
    assert_same(layer, last(torch.randn(3, 3, *size, dtype=torch.float64)))


@pytest.mark.parametrize("kernel, stride, padding, size", GEOMETRY)
def test_depthwise_convolutions(kernel, stride, padding, size):
    layer = convolution(kernel, stride, padding, groups=4)
    assert_same(layer, last(torch.randn(3, 4, *size, dtype=torch.float64)))


@pytest.mark.parametrize("avx512", [True, False])
@pytest.mark.parametrize("kernel, stride, padding, size", GEOMETRY[::5])
def test_kernels_on_one_channel(monkeypatch, kernel, stride, padding, size, avx512):
    monkeypatch.setattr(kernels, "AVX512", avx512)
    monkeypatch.setattr(layers, "SMALL_MAP", 0)
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 4, kernel, stride, padding).double()
    assert_same(layer, torch.randn(17, 1, *size, dtype=torch.float64))


@pytest.mark.parametrize("images", [1, 10, 16])
def test_any_number_of_images_in_any_layout(images):
    x = torch.randn(images, 3, 6, 5, dtype=torch.float64)
    for each in (x, last(x)):
        assert_same(convolution(1, 1, 0), each)
        assert_same(convolution(3, 1, 1), each)


def test_layers_that_are_not_taken():
    plain = convolution(3, 1, 1)
    contiguous = nn.Conv2d(3, 4, 3).double()
    grouped = nn.Conv2d(4, 4, 3, groups=2).double().to(memory_format=torch.channels_last)
    dilated = nn.Conv2d(3, 4, 3, dilation=2).double().to(memory_format=torch.channels_last)
    wrapped = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").double()
    named = nn.Conv2d(3, 4, 3, padding="same").double().to(memory_format=torch.channels_last)
    small = nn.Linear(4, 4).double()
    model = nn.ModuleList([plain, contiguous, grouped, dilated, wrapped, named, small])
    with layers.FastLayers(job_of(model)).taken():
        assert ["forward" in vars(m) for m in model] == [True] + [False] * 6
        one = torch.randn(3, 5, 4, dtype=torch.float64)
        torch.testing.assert_close(plain(one), nn.Conv2d.forward(plain, one))


@pytest.mark.parametrize("given", [{"device": "meta"}, {"precision": "bf16"}])
def test_other_devices_and_autocast_keep_pytorchs_layers(given):
    model = nn.Sequential(convolution(3, 1, 1), nn.Linear(300, 300))
    with layers.FastLayers(job_of(model, **given)).taken():
        assert not any("forward" in vars(module) for module in model.modules())


class Net(nn.Module):
    """Convolutions down to one pixel, one of them depthwise; `twice` is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1),
            nn.Tanh(),
            nn.Conv2d(6, 6, 3, 2, 1, groups=6),
            nn.Conv2d(6, 8, 1),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, 2, 1, bias=False),
        )
        self.twice = nn.Conv2d(8, 8, 3, 1, 1)
        self.out = nn.Linear(8, 5)
        self.double().to(memory_format=torch.channels_last)

    def forward(self, x):
        z = self.body(x)
        return self.out((z + self.twice(self.twice(z).tanh())).flatten(1))


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["", "decay"])
@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["", "momentum"])
@pytest.mark.parametrize("clip", [0.0, 0.5], ids=["", "clip"])
def test_training_equals_torch(monkeypatch, clip, momentum, decay):
    monkeypatch.setattr(layers, "LARGE_WEIGHT", 0)
    own, reference = Net(), Net()
    job = job_of(
        own, clip=clip, momentum=momentum, weight_decay=decay, scheduled=False, device="cpu"
    )
    fast, update = layers.FastLayers(job), Update(job, job.groups)
    theirs = torch.optim.SGD(reference.parameters(), 0.1, momentum, weight_decay=decay)
    parameters, updated = [*own.parameters()], 0
    for step in range(4):
        x = last(torch.randn(7, 3, 8, 8, dtype=torch.float64))
        with fast.taken():
            loss = (own(x) - step).square().mean() + own.body[3].weight.square().sum()
            found = fast.gradients(loss, parameters)
            updated = sum(g is None for g in found)
            fast.update(update(found, norms=fast.norms()))
        theirs.zero_grad()
        loss = (reference(x) - step).square().mean() + reference.body[3].weight.square().sum()
        loss.backward()
        if clip:
            assert nn.utils.clip_grad_norm_(reference.parameters(), clip) > clip
        theirs.step()
        for (name, a), b in zip(own.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=name)
    # The first and last convolution and the linear layer; the others are used twice or depthwise.
    # With clipping, the first convolution has too many rows.
    assert updated == (0 if momentum or decay else 2 if clip else 3)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_loss_at_other_weights_is_computed_there(monkeypatch, factor):
    """As sharpness-aware minimisation does: by `functional_call`, inside the loss."""
    monkeypatch.setattr(layers, "LARGE_WEIGHT", 0)
    net, x = Net(), last(torch.randn(7, 3, 8, 8, dtype=torch.float64))

    def loss():
        moved = {name: factor * p + 0.1 for name, p in net.named_parameters()}
        return functional_call(net, moved, (x,)).square().sum()

    parameters = [*net.parameters()]
    expected = loss()
    wanted = torch.autograd.grad(expected, parameters)
    fast = layers.FastLayers(job_of(net))
    with fast.taken():
        net(x)
        value = loss()
        found = fast.gradients(value, parameters)
    torch.testing.assert_close(value, expected)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_an_input_that_changes_after_the_layer_is_an_error_as_in_pytorch():
    layer = convolution(3, 1, 1)
    x = last(torch.randn(2, 3, 2, 2, dtype=torch.float64)).requires_grad_()
    with layers.FastLayers(job_of(layer)).taken():
        z = x.tanh()
        y = layer(z)
        z.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("rows", [3, 16, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_both_libraries_give_the_same_product(monkeypatch, rows, bias):
    monkeypatch.setattr(products, "LARGE_PRODUCT", 0)
    x, weight, b = torch.randn(rows, 30), torch.randn(20, 30), torch.randn(20) if bias else None
    wide = weight.double()
    expected = nn.functional.linear(x.double(), wide, None if b is None else b.double())
    for operator in {products.ONEDNN, getattr(torch.ops.mkldnn, "_linear_pointwise", None), None}:
        monkeypatch.setattr(products, "ONEDNN", operator)
        found = products.product(x, weight, b)
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        gaps = torch.randn(20, 60)[:, ::2].copy_(weight)
        torch.testing.assert_close(products.product(x, gaps, b), found, rtol=1e-5, atol=1e-5)
        back = products.product(found, weight.T)
        torch.testing.assert_close(back.double(), found.double() @ wide, rtol=1e-5, atol=1e-4)

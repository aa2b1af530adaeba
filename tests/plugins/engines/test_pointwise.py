"""1×1 convolutions as matrix products: the same numbers, wherever they apply."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from protofl_plugins.engines import layers
from torch import nn


def net():
    """Layers that are taken, numbers 0 and 2, and layers that are not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Tanh(),
        nn.Conv2d(8, 6, 1, bias=False),
        nn.Conv2d(6, 6, 1, stride=2),
        nn.Conv2d(6, 6, 1, groups=2),
        nn.Conv2d(6, 4, 1, padding=1),
        nn.Conv2d(4, 4, 3),
    ).double()


def job_of(model, device="cpu", precision="fp32"):
    device = torch.device(device)
    return SimpleNamespace(device=device, precision=precision, whole=lambda: model)


def gradients(model, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    loss = y.square().sum()
    first = torch.autograd.grad(loss, [x, *model.parameters()], create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), [*model.parameters()], allow_unused=True)
    return [y, *first, *(g for g in second if g is not None)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images", [1, 10, 16])
def test_values_gradients_and_second_gradients_are_the_convolutions(images, layout):
    model = net().to(memory_format=layout)
    x = torch.randn(images, 3, 4, 5, dtype=torch.float64).contiguous(memory_format=layout)
    expected = gradients(model, x)
    with layers.pointwise_convolutions(job_of(model)):
        found = gradients(model, x)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_path_is_taken_for_few_images_and_left_afterwards(monkeypatch):
    model, seen = net(), []
    true = layers.linear
    monkeypatch.setattr(
        layers, "linear", lambda x, *rest: seen.append(tuple(x.shape)) or true(x, *rest)
    )
    with layers.pointwise_convolutions(job_of(model)):
        model(torch.randn(10, 3, 4, 5, dtype=torch.float64))
        assert seen == [(10, 4, 5, 3), (10, 4, 5, 8)]
        model(torch.randn(16, 3, 4, 5, dtype=torch.float64))
        model[0](torch.randn(3, 4, 5, dtype=torch.float64))  # one image without a batch axis
    assert len(seen) == 2
    model(torch.randn(10, 3, 4, 5, dtype=torch.float64))
    assert len(seen) == 2
    assert not any("forward" in vars(module) for module in model.modules())


def test_nothing_is_copied_in_channels_last():
    model = nn.Conv2d(8, 16, 1).to(memory_format=torch.channels_last)
    x = torch.randn(10, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    with layers.pointwise_convolutions(job_of(model)):
        y = model(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("given", [{"device": "meta"}, {"precision": "bf16"}])
def test_other_devices_and_autocast_keep_the_convolution(given):
    model = net()
    with layers.pointwise_convolutions(job_of(model, **given)):
        assert not any("forward" in vars(module) for module in model.modules())

"""Tests of the model group of one net in several widths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import protofl as pf
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.widths import Scaler, WidthsGroup, narrow

SAMPLE = pf.datasets.SampleSpec((3, 32, 32))


def architectures(nets, **options):
    return WidthsGroup().architectures(config=WidthsGroup.Config(nets=nets, **options))


def built(architecture, K=32):
    torch.manual_seed(0)
    return architecture.build(SAMPLE, 10, K)


@pytest.mark.parametrize("net", ["cnn4", "resnet8", "mobilenet_v2"])
def test_a_narrow_net_has_the_first_channels_of_the_whole_one(net):
    whole, half = (built(a) for a in architectures(f"{net}@1,0.5"))
    tensors, parts = whole.extractor[0].state_dict(), half.extractor[0].state_dict()
    assert tensors.keys() == parts.keys()
    for name, part in parts.items():
        full = tensors[name]
        assert torch.equal(part, full[tuple(slice(m) for m in part.shape)])
        if part.ndim:
            assert part.shape[0] == math.ceil(full.shape[0] / 2)
    assert half.features(torch.zeros(2, 3, 32, 32)).shape == (2, 32)


def test_the_whole_net_is_what_it_was():
    torch.manual_seed(0)
    net = CNN4.build(SAMPLE)
    (one,) = architectures("cnn4")
    same, x = built(one).extractor[0], torch.randn(2, 3, 32, 32)
    assert torch.equal(same(x), net(x))


def test_inputs_of_a_channel_of_a_flattened_map_are_counted():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(10), nn.Flatten(), nn.Linear(72, 4))
    assert narrow(net, 0.5, SAMPLE, "net") == (2, 1)
    assert net[3].positions == 9 and net[3].weight.shape == (2, 36)


def test_outputs_are_divided_by_the_width():
    on, off = (built(*architectures("cnn4@0.5", scaler=scaler)) for scaler in (True, False))
    on.load_state_dict(off.state_dict())
    scaled = [m for m in on.modules() if m._forward_hooks]
    assert len(scaled) == 3 and all(isinstance(*m._forward_hooks.values(), Scaler) for m in scaled)
    x, first = torch.randn(2, 3, 32, 32), off.extractor[0][0]
    assert torch.equal(on.extractor[0][0](x), first(x) / 0.5)


@pytest.mark.parametrize(
    ("nets", "message"),
    [
        ("", "the model group widths needs a net"),
        ("resnet81@1", "widths:resnet81 is not a net"),
        ("cnn4@1,0", "'0' is not a width"),
        ("cnn4@1.5", "'1.5' is not a width"),
        ("cnn4@1,,0.5", "'nothing' is not a width"),
        ("cnn4@1,half", "'half' is not a width"),
        ("cnn4@1,0.5,0.50", "has the width 0.5 twice"),
    ],
)
def test_nets_that_are_refused(nets, message):
    with pytest.raises(pf.UsageError, match=message):
        architectures(nets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "why"), [("vit_b_32", "is a"), ("resnext50_32x4d", "a convolution has 32 groups")]
)
def test_nets_that_cannot_be_made_narrower(net, why):
    with pytest.raises(pf.UsageError, match=f"{net} cannot be made narrower: .*{why}"):
        built(*architectures(f"{net}@0.5"))

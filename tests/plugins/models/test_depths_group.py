"""Tests of the model group of one net in several depths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import protofl as pf
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.depths import DepthsGroup
from protofl_plugins.models.imagenet import RESNET18

SAMPLE = pf.datasets.SampleSpec((3, 32, 32))


def architectures(nets):
    return DepthsGroup().architectures(config=DepthsGroup.Config(nets=nets))


def built(architecture, K=32):
    torch.manual_seed(0)
    return architecture.build(SAMPLE, 10, K).eval()


@pytest.mark.parametrize(("net", "depths"), [("cnn4", 3), ("resnet10", 4), ("resnet18", 4)])
def test_a_shallow_net_has_the_first_tensors_of_the_whole_one(net, depths):
    found = architectures(net)
    assert [a.name for a in found] == [f"{net}@{n}" for n in range(depths, 0, -1)]
    models = [built(a) for a in found]
    whole = {name: t.shape for name, t in models[0].state_dict().items()}
    for deeper, model in itertools.pairwise(models):
        shapes = {name: t.shape for name, t in model.state_dict().items()}
        assert shapes.items() < {n: t.shape for n, t in deeper.state_dict().items()}.items()
        assert shapes.items() < whole.items()


def test_features_are_those_of_the_exits_side_by_side():
    whole, one = (built(a, K=9) for a in architectures("cnn4@3,1"))
    one.load_state_dict({name: whole.state_dict()[name] for name in one.state_dict()})
    x = torch.randn(2, 3, 32, 32)
    z, first = whole.features(x), one.features(x)
    assert torch.equal(first[:, :3], z[:, :3]) and not first[:, 3:].any()
    scores = whole.head.scores(z)
    for n, (h, each) in enumerate(zip(whole.head.classifiers, scores, strict=True)):
        torch.testing.assert_close(each, h(z[:, 3 * n : 3 * n + 3]))
    torch.testing.assert_close(whole(x), sum(scores) / 3)
    torch.testing.assert_close(one(x), scores[0])


@pytest.mark.parametrize(("name", "extractor"), [("cnn4", CNN4), ("resnet18", RESNET18)])
def test_the_stages_are_the_net(name, extractor):
    torch.manual_seed(0)
    net = extractor.build(SAMPLE).eval()
    model, x = built(architectures(name)[0]), torch.randn(2, 3, 32, 32)
    out = x
    for stage in model.extractor.stages:
        out = stage(out)
    if out.ndim == 4:
        out = nn.functional.adaptive_avg_pool2d(out, 1).flatten(1)
    torch.testing.assert_close(out, net(x))


def test_features_that_the_exits_do_not_fill_are_0():
    model = built(architectures("cnn4")[0], K=11)
    assert not model.features(torch.randn(2, 3, 32, 32))[:, 9:].any()


@pytest.mark.parametrize(
    ("nets", "message"),
    [
        ("", "the model group depths needs a net"),
        ("vgg11@1", "depths:vgg11 is not a net with stages"),
        ("cnn4@4", "'4' is not a depth of cnn4"),
        ("resnet18@0", "'0' is not a depth of resnet18"),
        ("cnn4@3,,1", "'nothing' is not a depth"),
        ("cnn4@3,half", "'half' is not a depth"),
        ("cnn4@2,1,2", "has the depth 2 twice"),
    ],
)
def test_nets_that_are_refused(nets, message):
    with pytest.raises(pf.UsageError, match=message):
        architectures(nets)


def test_fewer_features_than_exits_are_refused():
    with pytest.raises(pf.UsageError, match="cnn4 has 3 exits, and its features have the width 2"):
        built(architectures("cnn4")[0], K=2)

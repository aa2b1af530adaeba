"""Tests of groups that are defined by name: ``torchvision:resnet18,mobilenet_v3_small``."""

from __future__ import annotations

import pytest
import torch
import torchvision.models as tv
from slowness import quick
from torch import nn

import protofl as pf


@pytest.fixture
def group(groups):
    return groups["torchvision"]


def named(group, names):
    return group.architectures(config=type(group).Config(names=names))


def test_argument_names_a_field(group):
    assert group.argument in type(group).Config.model_fields


def test_order_is_the_users(group):
    found = named(group, "resnet18, mobilenet_v3_small,vgg11")
    assert [a.name for a in found] == ["resnet18", "mobilenet_v3_small", "vgg11"]
    assert {a.head for a in found} == {"linear"}


def test_every_classifier_of_torchvision_has_a_name(group):
    names = tv.list_models(module=tv)
    assert [a.name for a in named(group, ",".join(names))] == names


# By default, a net for each name of the last layer: fc, classifier, classifier[-1], head,
# heads.head.
EXTRACTORS = [
    ("shufflenet_v2_x0_5", 1024, 0),
    ("regnet_x_400mf", 400, 0),
    ("googlenet", 1024, 1),
    ("densenet121", 1024, 0),
    ("mobilenet_v2", 1280, 1),
    ("mobilenet_v3_small", 1024, 1),
    ("efficientnet_b0", 1280, 1),
    ("convnext_tiny", 768, 0),
    ("swin_t", 768, None),
    ("vit_b_32", 768, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "native", "dropouts"),
    quick(EXTRACTORS, EXTRACTORS[0]),
)
def test_extractors(group, name, native, dropouts):
    (architecture,) = named(group, name)
    with torch.device("meta"):  # shapes only; torchvision computes the values
        model = architecture.build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512)
        assert model.training
        assert isinstance(model.head, nn.Linear)
        if dropouts is not None:
            assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == dropouts
        x = torch.zeros(2, 3, 32, 32)
        assert model.eval().extractor(x).shape == (2, native)
        assert model.features(x).shape == (2, 512)
        model.train()(x).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_a_net_that_is_in_a_group_runs_by_the_same_rules(group, groups):
    (inline,) = named(group, "resnet18")
    group_18 = groups["resnet18"]
    (listed,) = group_18.architectures(config=type(group_18).Config())
    assert (inline.channels_last, inline.eval_batch) == (listed.channels_last, listed.eval_batch)
    weights = []
    for architecture in (inline, listed):
        torch.manual_seed(0)
        weights.append(
            architecture.build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512).state_dict()
        )
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize("names", ["", "resnet18,", "resnet18,,vgg11"])
def test_no_name(group, names):
    with pytest.raises(pf.UsageError, match="needs names of models") as error:
        named(group, names)
    assert "torchvision:resnet18" in error.value.do


def test_unknown_name(group):
    with pytest.raises(pf.UsageError, match="unknown torchvision model 'resnet19'") as error:
        named(group, "vgg11,resnet19")
    assert "'resnet18'" in error.value.near


def test_detection_models_are_unknown(group):
    with pytest.raises(pf.UsageError, match="unknown torchvision model"):
        named(group, "fasterrcnn_resnet50_fpn")


def test_name_given_twice(group):
    with pytest.raises(pf.UsageError, match="named twice"):
        named(group, "resnet18,resnet18")


@pytest.mark.parametrize(
    ("name", "side", "near"),
    [
        ("inception_v3", 32, "smallest image side is 75"),
        ("alexnet", 32, "smallest image side is 63"),
        ("vit_b_16", 40, "multiple of 16"),
        ("maxvit_t", 32, "multiples of 224"),
    ],
)
def test_image_side_that_a_net_refuses(group, name, side, near):
    (architecture,) = named(group, name)
    with pytest.raises(pf.UsageError, match=f"{name} cannot take images of {side}×{side}") as error:
        architecture.build(pf.datasets.SampleSpec((3, side, side)), 10, 512)
    assert near in error.value.near


@pytest.mark.slow
def test_inception_at_its_smallest_side(group):
    (architecture,) = named(group, "inception_v3")
    with torch.device("meta"):
        model = architecture.build(pf.datasets.SampleSpec((3, 75, 75)), 10, 512)
        assert model(torch.zeros(2, 3, 75, 75)).shape == (2, 10)


def test_no_linear_last_layer(group):
    (architecture,) = named(group, "squeezenet1_1")
    with pytest.raises(pf.UsageError, match="no linear last layer"):
        architecture.build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512)


@pytest.mark.slow
def test_a_side_is_refused_without_memory_too(group):
    *good, bad = named(group, "convnext_tiny,regnet_y_400mf,inception_v3")
    with torch.device("meta"):
        for architecture in good:
            model = architecture.build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512)
            assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
        with pytest.raises(pf.UsageError, match="inception_v3"):
            bad.build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512)

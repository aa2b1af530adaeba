"""Tests of each architecture, once for all groups that contain it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
import torchvision.models as tv
from slowness import quick
from torch import nn

import protofl as pf

C, K = 100, 512
IMAGENET = (
    "googlenet mobilenet_v2 resnet18 resnet34 resnet50 resnet101 resnet152 vit_b_16 vit_b_32"
).split()
SMALL_RESNETS = {"resnet4": 64, "resnet6": 128, "resnet8": 256, "resnet10": 512}
NATIVE = {
    "cnn4": 512,
    "googlenet": 1024,
    "mobilenet_v2": 1280,
    **SMALL_RESNETS,
    **{"resnet18": 512, "resnet34": 512},
    **{"resnet50": 2048, "resnet101": 2048, "resnet152": 2048},
    **{"vit_b_16": 768, "vit_b_32": 768},
    **{"resnet11": 256, "resnet20": 256, "resnet29": 256},
    **{f"htcnn8-{i}": 512 for i in range(1, 9)},
}
ONE_OF_EACH_KIND = ("cnn4", "resnet4", "resnet10", "resnet11", "vit_b_32", "htcnn8-1")
POSITIONS = {"vit_b_16": (197, 5), "vit_b_32": (50, 2)}  # at 224 and at 32 pixels


@pytest.fixture(scope="module")
def architectures(groups):
    """Return every architecture with a plain head (ViTs: with their own), by name."""
    found = {}
    for name, group in groups.items():
        if name not in ("torchvision", "widths", "depths") and not name.endswith("htc4"):
            for architecture in group.architectures(config=getattr(group, "Config", pf.Config)()):
                first = found.setdefault(architecture.name, architecture)
                assert replace(first, build=architecture.build) == architecture
    return found


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def images(batch, channels, side):
    return torch.linspace(-2, 2, batch * channels * side**2).view(batch, channels, side, side)


def test_this_file_knows_every_architecture(architectures):
    assert set(architectures) == set(NATIVE)


@pytest.mark.parametrize("name", quick(NATIVE, *ONE_OF_EACH_KIND))
def test_one_architecture(architectures, name):
    """Check native width, K features, parameter count and a gradient for every parameter.

    Large ones are built without memory, because torchvision defines what they compute.
    """
    with torch.device("meta" if name in IMAGENET else "cpu"):
        check(architectures[name], name)


def check(architecture, name):
    model = architecture.build(pf.datasets.SampleSpec((3, 32, 32)), C, K)
    assert isinstance(model, pf.models.SplitModel)
    assert architecture.eval_batch >= 32

    if name in IMAGENET:
        meta = tv.get_model_weights(name).DEFAULT.meta["num_params"]
        head = NATIVE[name] * 1000 + 1000
        at_224, at_32 = POSITIONS.get(name, (0, 0))
        assert parameters(model.extractor) == meta - head - 768 * (at_224 - at_32)
    if architecture.head == "linear":
        assert isinstance(model.head, nn.Linear)
        assert parameters(model.head) == 51_300

    model.eval()
    x = images(2, 3, 32)
    with torch.inference_mode():
        native = model.extractor(x)
        z = model.features(x)
        assert native.flatten(1).shape == (2, NATIVE[name])
        assert z.shape == (2, K)
        if x.device.type == "cpu":
            torch.testing.assert_close(model(x), model.head(z))
        assert model(x).shape == (2, C)

    model.train()
    if architecture.channels_last:
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.is_meta or parameter.grad.isfinite().all(), key


def test_cnn4_has_the_published_parameters(architectures):
    assert (
        parameters(architectures["cnn4"].build(pf.datasets.SampleSpec((3, 32, 32)), 100, 512))
        == 924_708
    )


@pytest.mark.parametrize(("side", "flat"), [(28, 1024), (32, 1600), (64, 10816)])
def test_cnn4_flat_width_follows_the_side(architectures, side, flat):
    model = architectures["cnn4"].build(pf.datasets.SampleSpec((1, side, side)), 10, 512)
    assert next(m for m in model.extractor if isinstance(m, nn.Linear)).in_features == flat


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [28, 32, 45, 64])
def test_plain_cnns_take_the_images_as_they_are(architectures, side, channels):
    for name in ("cnn4", "htcnn8-1", "htcnn8-4"):
        model = architectures[name].build(pf.datasets.SampleSpec((channels, side, side)), 10, 512)
        assert model(images(2, channels, side)).shape == (2, 10)


@pytest.mark.parametrize(
    "name", "googlenet mobilenet_v2 resnet4 resnet10 resnet18 resnet50 resnet20 vit_b_32".split()
)
def test_larger_images(architectures, name):
    with torch.device("meta"), torch.inference_mode():
        model = architectures[name].build(pf.datasets.SampleSpec((3, 64, 64)), 10, 512).eval()
        assert model.features(images(2, 3, 64)).shape == (2, 512)


@pytest.mark.parametrize("name", SMALL_RESNETS)
def test_small_resnets_are_torchvisions_first_stages(architectures, name):
    """They have the stem and one basic block per stage; smaller ones are part of larger ones."""
    extractor = architectures[name].build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512).extractor
    stages = list(SMALL_RESNETS).index(name) + 1
    reference = tv.resnet18(num_classes=1)
    expected = parameters(reference.conv1) + parameters(reference.bn1)
    for stage in range(1, stages + 1):
        expected += parameters(getattr(reference, f"layer{stage}")[0])
    assert parameters(extractor) == expected
    convolutions = [
        key
        for key, m in extractor.named_modules()
        if isinstance(m, nn.Conv2d) and "downsample" not in key
    ]
    assert len(convolutions) + 1 == int(name.removeprefix("resnet"))  # and the classifier


def test_dropout_stays_before_fc_in_googlenet_and_leaves_with_mobilenets_classifier(architectures):
    for name, count in (("googlenet", 1), ("mobilenet_v2", 0)):
        model = architectures[name].build(pf.datasets.SampleSpec((3, 32, 32)), 10, 512)
        found = [m for m in model.modules() if isinstance(m, nn.Dropout)]
        assert len(found) == count


@pytest.mark.slow
def test_vit_head_is_pretrainings(architectures):
    layers = list(
        architectures["vit_b_32"].build(pf.datasets.SampleSpec((3, 32, 32)), 100, 512).head
    )
    assert [type(x) for x in layers] == [nn.Linear, nn.Tanh, nn.Linear]
    assert [(x.in_features, x.out_features) for x in layers[::2]] == [(512, 768), (768, 100)]


@pytest.mark.parametrize("name", ["resnet4", "resnet18", "googlenet"])
def test_grey_images_are_refused_where_three_channels_are_needed(architectures, name):
    with pytest.raises(pf.UsageError, match=f"{name} takes images of 3 channels, not of 1"):
        architectures[name].build(pf.datasets.SampleSpec((1, 32, 32)), 10, 512)


def test_vit_names_the_sides_that_its_patches_allow(architectures):
    with pytest.raises(pf.UsageError, match="48×48") as error:
        architectures["vit_b_32"].build(pf.datasets.SampleSpec((3, 48, 48)), 10, 512)
    assert "multiple of 32" in error.value.near


@pytest.mark.parametrize("name", ["cnn4", "googlenet", "resnet4", "resnet152", "vit_b_16"])
def test_architectures_travel_and_can_be_measured_without_memory(architectures, name):
    architecture = pickle.loads(pickle.dumps(architectures[name]))
    with torch.device("meta"):
        model = architecture.build(pf.datasets.SampleSpec((3, 32, 32)), 100, 512).eval()
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 100)

"""torchvision's ImageNet nets as feature extractors, freshly drawn and never pretrained.

The stems are left as they are (stride 2, then pooling) and images are not resized: at 32×32 the
last stage of a ResNet sees 1×1, as in the published code of FedTGP.

torchvision is imported when the first net is made. It takes a second, and a run has its worker
processes do it while it prepares itself (`protofl.backends.Host.warm_up`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

import protofl as pf
from protofl_plugins.models.parts import Extractor, Head
from protofl_plugins.models.torchvision_import import import_torchvision


def torchvision_net(name: str, sample: pf.datasets.SampleSpec) -> nn.Module:
    """The classification net ``name`` of torchvision, with one class as a stub.

    Raises:
        UsageError: The net can't be made for these images.
    """
    tv = import_torchvision()

    _need_three(sample, name)
    options: dict[str, Any] = {}
    height, width = sample.shape[1:]
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        if height != width:
            raise wrong_size(name, sample)
        options = {"image_size": height}
    elif name.startswith("maxvit_"):
        options = {"input_size": (height, width)}
    # RegNets compute their widths with tensors, which the meta device has no values for.
    regnet = torch.device("cpu") if name.startswith("regnet_") else nullcontext()
    device = torch.empty(0).device
    try:
        with regnet:
            net: nn.Module = tv.get_model(name, weights=None, num_classes=1, **options)
        return net.to(device)
    except (AssertionError, ValueError) as error:
        raise wrong_size(name, sample, error) from None


def _need_three(sample: pf.datasets.SampleSpec, name: str) -> None:
    if sample.shape[0] != 3:
        raise pf.UsageError(
            f"{name} takes images of 3 channels, not of {sample.shape[0]}",
            do="declare `channels = 3` in the model group",
        )


def wrong_size(
    name: str, sample: pf.datasets.SampleSpec, error: Exception | None = None
) -> pf.UsageError:
    """The error for a net that refuses images of such a size, naming the sizes that it takes."""
    tv = import_torchvision()

    smallest = tv.get_model_weights(name).DEFAULT.meta["min_size"][0]
    height, width = sample.shape[1:]
    if name.startswith("vit_"):
        near = f"its images are square, of a side that is a multiple of {name.rpartition('_')[2]}"
    elif name.startswith("maxvit_"):
        near = f"the sides of its images must be multiples of {smallest}"
    elif min(height, width) < smallest:
        near = f"its smallest image side is {smallest}"
    else:
        near = f"torchvision says: {str(error).splitlines()[0]}" if error else ""
    return pf.UsageError(
        f"torchvision's {name} cannot take images of {height}×{width}",
        near,
        "choose another model, or a data set with images of such a size",
    )


def without_last_linear(net: nn.Module, name: str) -> nn.Module:
    """``net`` with its last layer, a linear one, replaced by the identity.

    Raises:
        UsageError: The last layer is not linear.
    """
    path, last = list(net.named_modules())[-1]
    if not isinstance(last, nn.Linear):
        raise pf.UsageError(
            f"torchvision's {name} has no linear last layer to take the features before",
            f"its last layer is {type(last).__name__}",
            "choose another model",
        )
    net.set_submodule(path, nn.Identity())
    return net


def torchvision_features(name: str, sample: pf.datasets.SampleSpec) -> nn.Module:
    """``name`` up to its last linear layer: B×3×height×width → B×its native width."""
    return without_last_linear(torchvision_net(name, sample), name)


def mobilenet_v2_features(sample: pf.datasets.SampleSpec) -> nn.Module:
    """MobileNetV2 without its classifier, whose dropout goes with it: → B×1280.

    That is what published code makes of it, where GoogLeNet's dropout stays.
    """
    net = torchvision_net("mobilenet_v2", sample)
    net.set_submodule("classifier", nn.Identity())
    return net


def small_resnet(stages: int, sample: pf.datasets.SampleSpec) -> nn.Module:
    """ResNet of ``stages`` stages of one basic block after torchvision's stem: → B×64·2^(s-1).

    One to four stages are ResNet4, 6, 8 and 10 (Zhong et al. 2017).
    """
    import_torchvision()
    from torchvision.models.resnet import BasicBlock, ResNet

    _need_three(sample, f"resnet{2 * stages + 2}")
    net: nn.Module = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1)
    for stage in range(stages + 1, 5):
        net.set_submodule(f"layer{stage}", nn.Identity())
    net.set_submodule("fc", nn.Identity())
    return net


CONTIGUOUS = re.compile(r"resnet(10)|wide_resnet.*|vgg.*|vit_.*|swin_.*")
"""Nets that channels-last slows down or doesn't help; the others measured are faster with it."""


def imagenet_extractor(
    name: str, build: Callable[[pf.datasets.SampleSpec], nn.Module] | None = None
) -> Extractor:
    """The extractor ``name``, torchvision's net of that name unless ``build`` says otherwise."""
    return Extractor(
        name,
        build or partial(torchvision_features, name),
        channels_last=not CONTIGUOUS.fullmatch(name),
        eval_batch=256,
    )


GOOGLENET = imagenet_extractor("googlenet")
"""GoogLeNet without auxiliary classifiers; its dropout stands before fc and stays."""
MOBILENET_V2 = imagenet_extractor("mobilenet_v2", mobilenet_v2_features)
RESNET4 = imagenet_extractor("resnet4", partial(small_resnet, 1))
RESNET6 = imagenet_extractor("resnet6", partial(small_resnet, 2))
RESNET8 = imagenet_extractor("resnet8", partial(small_resnet, 3))
RESNET10 = imagenet_extractor("resnet10", partial(small_resnet, 4))
RESNET18 = imagenet_extractor("resnet18")
RESNET34 = imagenet_extractor("resnet34")
RESNET50 = imagenet_extractor("resnet50")
RESNET101 = imagenet_extractor("resnet101")
RESNET152 = imagenet_extractor("resnet152")
VIT_B_16 = imagenet_extractor("vit_b_16")
VIT_B_32 = imagenet_extractor("vit_b_32")

VIT_HEAD = Head((768,), nn.Tanh)
"""A ViT's head as in its pretraining (Dosovitskiy et al. 2021, section 3.1)."""

"""A model group written in its name: ``--models torchvision:resnet18,mobilenet_v3_small``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.imagenet import (
    imagenet_extractor,
    torchvision_net,
    without_last_linear,
    wrong_size,
)
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.pretrained import Library, LibraryGroup
from protofl_plugins.models.torchvision_import import import_torchvision

tv = import_torchvision()


def _build(net: str, sample: pf.datasets.SampleSpec) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the net without its last linear layer.

    Raises:
        UsageError: The net can't take such images, or has no linear last layer.
    """
    module = torchvision_net(net, sample)
    *_, (last, _) = module.named_modules()
    module = without_last_linear(module, net).eval()
    try:
        with torch.no_grad():
            module(sample.zeros(1))
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise wrong_size(net, sample, error) from None
    return module.train(), (f"{last}.", "aux", "AuxLogits")


def _download(net: str) -> Mapping[str, Tensor]:
    result: Mapping[str, Tensor] = tv.get_model_weights(net).DEFAULT.get_state_dict(check_hash=True)
    return result


def _statistics(net: str) -> tuple[Sequence[float], Sequence[float]]:
    transforms = tv.get_model_weights(net).DEFAULT.transforms()
    return transforms.mean, transforms.std


def _extractor(net: str, build: Callable[[pf.datasets.SampleSpec], nn.Module]) -> Extractor:
    return imagenet_extractor(net, build)


class TorchvisionGroup(LibraryGroup):
    """Any of torchvision's classifiers: torchvision:NAME,NAME,... in the order given.

    Only the last linear layer goes, so what stands before it stays: the dropout of MobileNetV2
    (which ``htfe8`` drops with the whole classifier), the hidden layers of VGG.
    """

    check_argument = "resnet18,shufflenet_v2_x0_5"
    library = Library(
        name="torchvision",
        names=partial(tv.list_models, module=tv),
        build=_build,
        download=_download,
        statistics=_statistics,
        extractor=_extractor,
    )

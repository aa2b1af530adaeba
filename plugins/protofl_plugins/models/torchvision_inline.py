"""A model group written in its name: ``--models torchvision:resnet18,mobilenet_v3_small``."""

from __future__ import annotations

import difflib
from functools import partial
from typing import cast

import torch
import torchvision.models as tv
from torch import nn

import protofl as pf
from protofl_plugins.models.group import ModelGroup
from protofl_plugins.models.imagenet import imagenet_extractor, torchvision_features, wrong_size


class TorchvisionGroup(ModelGroup):
    """Any of torchvision's classifiers: torchvision:NAME,NAME,... in the order given.

    Only the last linear layer goes, so what stands before it stays: the dropout of MobileNetV2
    (which ``htfe8`` drops with the whole classifier), the hidden layers of VGG.
    """

    argument = "names"
    check_argument = "resnet18,shufflenet_v2_x0_5"

    class Config(pf.Config):
        """The nets."""

        names: str = pf.Field(
            "", description="torchvision's names of classification models, with commas between"
        )

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The nets without their last linear layer, each with a linear head K → C.

        Raises:
            UsageError: No name is given, one is unknown or given twice.
        """
        names = [name.strip() for name in cast(TorchvisionGroup.Config, config).names.split(",")]
        known = tv.list_models(module=tv)
        for position, name in enumerate(names):
            if name not in known:
                raise _unknown(name, known)
            if name in names[:position]:
                raise pf.UsageError(
                    f"torchvision model {name!r} is named twice",
                    do="name each architecture once; client i gets number i mod their number",
                )
        return [
            imagenet_extractor(name, partial(_checked_features, name)).with_head() for name in names
        ]


def _unknown(name: str, known: list[str]) -> pf.UsageError:
    if not name:
        return pf.UsageError(
            "the model group torchvision needs names of models",
            do="write for example: --models torchvision:resnet18,mobilenet_v3_small",
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return pf.UsageError(
        f"unknown torchvision model {name!r}",
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}",
        "use a name of torchvision.models.list_models(module=torchvision.models)",
    )


def _checked_features(name: str, sample: pf.datasets.SampleSpec) -> nn.Module:
    """The net's extractor, tried on an image of zeros.

    Raises:
        UsageError: The net can't take such images, or has no linear last layer.
    """
    net = torchvision_features(name, sample).eval()
    try:
        with torch.no_grad():
            net(sample.zeros(1))
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise wrong_size(name, sample, error) from None
    return net.train()

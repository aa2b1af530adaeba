"""Model group of one net in several depths: ``--models depths:resnet18@4,3,2,1``.

A net of depth d has the first d stages of the whole net, and an exit after each of them (DepthFL;
Kim et al., ICLR 2023). An exit m is a bottleneck and a classifier. The features are those of all
exits side by side; the scores are the mean of the classifiers' scores.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import protofl as pf
from protofl_plugins.models.cnn import CNN4
from protofl_plugins.models.group import ModelGroup, NormConfig
from protofl_plugins.models.imagenet import RESNET10, imagenet_extractor
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.torchvision_import import import_torchvision

OWN = {e.name: e for e in (CNN4, RESNET10)}
RESNETS = ("resnet", "resnext", "wide_resnet")
"""Beginnings of the names of torchvision's nets with a stem and four stages."""


class DepthsGroup(ModelGroup):
    """One net in several depths with an exit each, of DepthFL: depths:resnet18@4,3,2,1."""

    argument = "nets"
    check_argument = "cnn4@3,2,1"

    class Config(NormConfig):
        """The net and its depths."""

        nets: str = pf.Field(
            "",
            description="NET@DEPTH,DEPTH,…: cnn4, resnet10 or one of torchvision's ResNets, and "
            "numbers of stages; NET alone: all its depths, the deepest first",
        )

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The net in each depth, ``NET@DEPTH``.

        Raises:
            UsageError: The net is unknown, or a depth is not one of its numbers of stages or is
                given twice.
        """
        nets = cast(DepthsGroup.Config, config).nets
        name, at, text = nets.partition("@")
        extractor = _extractor_named(name.strip())
        most = stages_of(extractor)
        words = (
            [word.strip() for word in text.split(",")] if at else [*map(str, range(most, 0, -1))]
        )
        for word in words:
            if not (word.isdecimal() and 1 <= int(word) <= most):
                raise pf.UsageError(
                    f"depths:{nets}: {word or 'nothing'!r} is not a depth of {extractor.name}",
                    do=f"give numbers of stages from 1 to {most}",
                )
        depths = [int(word) for word in words]
        for depth in depths:
            if depths.count(depth) > 1:
                raise pf.UsageError(
                    f"depths:{nets} has the depth {depth} twice",
                    do="name each depth once; client i gets number i mod their number",
                )
        return [
            pf.models.Architecture(
                name=f"{extractor.name}@{depth}",
                build=partial(_build, extractor, depth),
                channels_last=extractor.channels_last,
                eval_batch=extractor.eval_batch,
                head=f"exits-{depth}",
            )
            for depth in depths
        ]


def stages_of(extractor: Extractor) -> int:
    """Return the number of stages of a net that the group knows."""
    return 3 if extractor is CNN4 else 4


def _extractor_named(name: str) -> Extractor:
    if name in OWN:
        return OWN[name]
    tv = import_torchvision()

    known = [*OWN, *(n for n in tv.list_models(module=tv) if n.startswith(RESNETS))]
    if name not in known:
        raise pf.UsageError(
            f"depths:{name} is not a net with stages"
            if name
            else "the model group depths needs a net",
            f"known: {', '.join(known)}",
            "write for example: --models depths:resnet18@4,3,2,1",
        )
    return imagenet_extractor(name)


def _stages(net: nn.Module) -> list[nn.Module]:
    """Return the stages of a net: each convolution of the CNN and its dense layer, or a ResNet's.

    The first stage of a ResNet has its stem.
    """
    if isinstance(net, nn.Sequential):
        layers = [*net]
        starts = [n for n, m in enumerate(layers) if isinstance(m, nn.Conv2d | nn.Flatten)]
        ends = [*starts[1:], len(layers)]
        return [nn.Sequential(*layers[a:b]) for a, b in zip(starts, ends, strict=True)]
    first = [net.get_submodule(name) for name in ("conv1", "bn1", "relu", "maxpool", "layer1")]
    return [nn.Sequential(*first), *(net.get_submodule(f"layer{n}") for n in (2, 3, 4))]


def _build(
    extractor: Extractor,
    depth: int,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """Return a freshly drawn model of a depth.

    Each exit of the whole net's D has ⌊K/D⌋ of the K features; those of exits that the model does
    not have, and the remainder, are 0.

    Raises:
        UsageError: K is below D.
    """
    most = stages_of(extractor)
    if feature_dim < most:
        raise pf.UsageError(
            f"{extractor.name} has {most} exits, and its features have the width {feature_dim}",
            do=f"give --feature-dim {most} or more",
        )
    stages = _stages(extractor.build(sample))[:depth]
    width = feature_dim // most
    exits, x = [], sample.zeros(1)
    with torch.no_grad():
        for stage in stages:
            stage.eval()
            x = stage(x)
            exits.append(_bottleneck(x, width))
            stage.train()
    return pf.models.SplitModel(
        Stages(stages, exits, feature_dim), Exits(depth, width, num_classes), feature_dim
    )


def _bottleneck(x: Tensor, width: int) -> nn.Module:
    """Return the layers from the output of a stage to the features of its exit."""
    if x.ndim == 2:
        return nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU())
    sides = tuple(min(2, side) for side in x.shape[2:])
    inputs = x.shape[1] * sides[0] * sides[1]
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(sides), nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()
    )


class Stages(nn.Module):
    """A feature extractor with an exit after each stage.

    Args:
        stages: The stages, each on the output of the one before.
        exits: Maps the output of each stage to features B×width.
        feature_dim: K; the exits' features are filled up with zeros.
    """

    def __init__(self, stages: list[nn.Module], exits: list[nn.Module], feature_dim: int) -> None:
        super().__init__()
        self.stages, self.exits = nn.ModuleList(stages), nn.ModuleList(exits)
        self.feature_dim = feature_dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of all exits side by side, B×K."""
        features = []
        for stage, leave in zip(self.stages, self.exits, strict=True):
            x = stage(x)
            features.append(leave(x))
        z = torch.cat(features, 1)
        return pad(z, (0, self.feature_dim - z.shape[1]))


@runtime_checkable
class HasExits(Protocol):
    """A head with several classifiers, of this group or another one."""

    def scores(self, z: Tensor) -> list[Tensor]:
        """Return the scores of each exit, B×C, of features B×K."""


class Exits(nn.Module):
    """A head with a classifier for each exit, on its part of the features.

    Args:
        depth: The number of exits.
        width: Features of each.
        num_classes: C.
    """

    def __init__(self, depth: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.width = width
        self.classifiers = nn.ModuleList(nn.Linear(width, num_classes) for _ in range(depth))

    def scores(self, z: Tensor) -> list[Tensor]:
        """Return the scores of each exit, B×C, of features B×K."""
        parts = (z[:, n * self.width : (n + 1) * self.width] for n in range(len(self.classifiers)))
        return [h(part) for h, part in zip(self.classifiers, parts, strict=True)]

    def forward(self, z: Tensor) -> Tensor:
        """Return the mean of the exits' scores, B×C: their ensemble."""
        return torch.stack(self.scores(z)).mean(0)

"""Model group of one net in several widths: ``--models widths:resnet18@1,0.5,0.25``.

A client of width r has, in each layer, ⌈r·n⌉ of the whole net's n channels, and the inputs that the
layer before has (HeteroFL; Diao et al., ICLR 2021).
"""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.cnn import CNN4, HTCNN8
from protofl_plugins.models.group import ModelGroup, NormConfig
from protofl_plugins.models.imagenet import (
    RESNET4,
    RESNET6,
    RESNET8,
    RESNET10,
    imagenet_extractor,
)
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.torchvision_import import import_torchvision

OWN = {e.name: e for e in (CNN4, *HTCNN8, RESNET4, RESNET6, RESNET8, RESNET10)}
SLICED = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d)


class WidthsGroup(ModelGroup):
    """One net in several widths, of HeteroFL and FedRolex: widths:resnet18@1,0.5,0.25."""

    argument = "nets"
    check_argument = "cnn4@1,0.5"

    class Config(NormConfig):
        """The net and its widths."""

        nets: str = pf.Field(
            "", description="NET@WIDTH,WIDTH,…: one of torchvision's or of protofl's CNNs, shares "
            "of its channels from 1 down"
        )  # fmt: skip
        scaler: bool = pf.Field(
            True, description="divide the outputs of each layer by the width; BatchNorm undoes it"
        )

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The net in each width, ``NET@WIDTH``.

        Raises:
            UsageError: The net is unknown, or a width is not in (0, 1] or is given twice.
        """
        config = cast(WidthsGroup.Config, config)
        name, at, text = config.nets.partition("@")
        extractor = _extractor_named(name.strip())
        widths = [_width(word, config.nets) for word in text.split(",")] if at else [1.0]
        for width in widths:
            if widths.count(width) > 1:
                raise pf.UsageError(
                    f"widths:{config.nets} has the width {width:g} twice",
                    do="name each width once; client i gets number i mod their number",
                )
        return [
            pf.models.Architecture(
                name=f"{extractor.name}@{width:g}",
                build=partial(_build, extractor, width, config.scaler),
                channels_last=extractor.channels_last,
                eval_batch=extractor.eval_batch,
            )
            for width in widths
        ]


def _extractor_named(name: str) -> Extractor:
    tv = import_torchvision()

    known = tv.list_models(module=tv)
    if name in OWN:
        return OWN[name]
    if name not in known:
        raise pf.UsageError(
            f"widths:{name} is not a net" if name else "the model group widths needs a net",
            f"known: {', '.join(OWN)}, and torchvision's classifiers",
            "write for example: --models widths:resnet18@1,0.5,0.25",
        )
    return imagenet_extractor(name)


def _width(word: str, nets: str) -> float:
    try:
        width = float(word)
    except ValueError:
        width = math.nan
    if not 0 < width <= 1:
        raise pf.UsageError(
            f"widths:{nets}: {word.strip() or 'nothing'!r} is not a width",
            do="give numbers above 0, at most 1",
        )
    return width


def _build(
    extractor: Extractor,
    width: float,
    scaler: bool,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """Return a freshly drawn model, which ends in a layer to K features and the head.

    Both have all their outputs in every width.
    """
    net = extractor.build(sample)
    width_of_net, positions = narrow(net, width, sample, extractor.name)
    if scaler and width < 1:
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(Scaler(width))
    projection = nn.Linear(width_of_net, feature_dim)
    projection.positions = positions  # type: ignore[assignment]
    return pf.models.SplitModel(
        nn.Sequential(net, nn.Flatten(), projection),
        nn.Linear(feature_dim, num_classes),
        feature_dim,
    )


def narrow(
    net: nn.Module, width: float, sample: pf.datasets.SampleSpec, name: str
) -> tuple[int, int]:
    """Keep the first ⌈width·n⌉ of the n outputs of each layer, and the inputs that are left.

    A layer gets the attribute ``positions``: how many inputs of it belong to one channel of the
    layer before (a linear layer after a flattened map).

    Args:
        net: Layers of the kinds in `SLICED` and such without weights.
        width: r in (0, 1].
        sample: What the net takes.
        name: The net's name, for errors.

    Returns:
        The number of outputs of the net, and how many of them belong to one channel.

    Raises:
        UsageError: The net has other layers.
    """
    last = [sample.shape[0]]

    def cut(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        _cut(module, inputs[0], width, last)

    hooks = []
    for path, module in net.named_modules():
        if isinstance(module, SLICED):
            hooks.append(module.register_forward_pre_hook(cut))
        elif next(module.parameters(recurse=False), None) is not None:
            raise _not_narrow(name, f"{path} is a {type(module).__name__}")
    training = net.training
    try:
        with torch.no_grad():
            outputs = net.eval()(sample.zeros(1)).flatten(1).shape[1]
    except (RuntimeError, ValueError) as error:
        raise _not_narrow(name, str(error).splitlines()[0]) from None
    finally:
        for hook in hooks:
            hook.remove()
    net.train(training)
    return outputs, max(1, outputs // last[0])


def _not_narrow(name: str, why: str) -> pf.UsageError:
    return pf.UsageError(
        f"{name} cannot be made narrower: {why}",
        do="choose a net of convolutions, linear layers and BatchNorm, such as resnet18",
    )


@torch.no_grad()
def _cut(module: nn.Module, x: Tensor, width: float, last: list[int]) -> None:
    """Slice a layer for its input, before its first forward pass."""
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        module.num_features = x.shape[1]
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for key, tensor in tensors.items():
            if tensor.ndim:
                _keep(module, key, tensor[: x.shape[1]])
        return
    if isinstance(module, nn.Linear):
        inputs = module.in_features = x.shape[-1]
        outputs = module.out_features = math.ceil(width * module.out_features)
        module.positions = max(1, inputs // last[0])  # type: ignore[assignment]
    else:
        assert isinstance(module, nn.Conv2d)
        outputs = math.ceil(width * module.out_channels)
        if module.groups == module.in_channels > 1:  # by depth
            outputs = module.groups = x.shape[1]
        elif module.groups > 1:
            raise ValueError(f"a convolution has {module.groups} groups")
        inputs = x.shape[1] // module.groups
        module.in_channels, module.out_channels = x.shape[1], outputs
    _keep(module, "weight", module.weight[:outputs, :inputs])
    if module.bias is not None:
        _keep(module, "bias", module.bias[:outputs])
    last[0] = outputs


def _keep(module: nn.Module, key: str, tensor: Tensor) -> None:
    tensor = tensor.detach().clone()
    is_weight = key in dict(module.named_parameters(recurse=False))
    setattr(module, key, nn.Parameter(tensor) if is_weight else tensor)


class Scaler:
    """Divides a layer's outputs by the width of its net, so that the next layer's sums are alike.

    Args:
        width: r in (0, 1).
    """

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, module: nn.Module, inputs: object, outputs: Tensor) -> Tensor:
        """Return the outputs / r."""
        return outputs / self.width

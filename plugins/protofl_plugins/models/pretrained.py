"""Nets of torchvision by name, pretrained or not: ``--models torchvision:resnet18,vgg11``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import AfterValidator, NonNegativeInt, model_validator
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models import frozen
from protofl_plugins.models.frozen import absolute
from protofl_plugins.models.group import ModelGroup, NormConfig
from protofl_plugins.models.imagenet import (
    imagenet_extractor,
    torchvision_net,
    without_last_linear,
    wrong_size,
)
from protofl_plugins.models.torchvision_import import import_torchvision


class PretrainedConfig(NormConfig):
    """Options of torchvision's nets, which may be pretrained."""

    names: str = pf.Field("", description="torchvision's names of models, with commas between")
    weights: Annotated[Literal["default"] | Path | None, AfterValidator(absolute)] = pf.Field(
        None,
        description="pretrained weights: default (downloaded), a safetensors file, or a folder "
        "with NAME.safetensors of each net. None: drawn from the seed, or default with freeze",
    )
    freeze: Literal["all", "none"] | NonNegativeInt = pf.Field(
        "none", description="number of first blocks that are not trained, or all"
    )
    projection: bool = pf.Field(
        True, description="with freeze=all, train a linear layer from the net's own width to K"
    )
    keep_features: bool = pf.Field(
        False, description="compute the features of a client's samples once; needs freeze=all"
    )
    min_side: int = pf.Field(
        32,
        ge=1,
        le=1024,
        description="side in pixels to which smaller images are enlarged",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_pretrained(cls, options: Any) -> Any:  # noqa: ANN401 - pydantic's own type
        """Frozen nets are pretrained."""
        if isinstance(options, dict) and options.get("freeze", "none") not in ("none", 0, "0"):
            return {"weights": "default", **options}
        return options


class TorchvisionGroup(ModelGroup):
    """Any of torchvision's classifiers: torchvision:NAME,NAME,... in the order given.

    Only the last linear layer goes, so what stands before it stays: the dropout of MobileNetV2
    (which ``htfe8`` drops with the whole classifier), the hidden layers of VGG.
    """

    argument = "names"
    check_argument = "resnet18,shufflenet_v2_x0_5"

    class Config(PretrainedConfig):
        """Options of torchvision's nets."""

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The nets without their last linear layer, each with a linear head K → C.

        Raises:
            UsageError: A name is missing, unknown or given twice, or options contradict each other.
        """
        config = cast(PretrainedConfig, config)
        names = [name.strip() for name in config.names.split(",")]
        _check(names, config)
        result = [
            imagenet_extractor(net, partial(_extractor, net, config)).with_head() for net in names
        ]
        if config.freeze == "all" and config.projection:
            result = [replace(each, build=partial(_projected, each.build)) for each in result]
        if config.keep_features:
            result = [replace(each, precomputed=frozen.frozen_part) for each in result]
        return result


def _check(names: list[str], config: PretrainedConfig) -> None:
    tv = import_torchvision()
    known = tv.list_models(module=tv)
    for position, name in enumerate(names):
        if not name:
            raise pf.UsageError(
                "the model group torchvision needs names of models",
                do="write for example: --models torchvision:resnet18,resnet34",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            raise pf.UsageError(
                f"unknown torchvision model {name!r}",
                f"did you mean {' or '.join(map(repr, near))}?" if near
                else f"known: {', '.join(known)}",
            )  # fmt: skip
        if name in names[:position]:
            raise pf.UsageError(
                f"torchvision model {name!r} is named twice",
                do="name each architecture once; client i gets number i mod their number",
            )
    if config.freeze not in ("none", 0) and config.weights is None:
        raise pf.UsageError(
            f"freeze={config.freeze} needs pretrained weights, and weights is None",
            do="give --set models.weights=default, or a safetensors file",
        )
    if config.keep_features:
        frozen.check_kept(config.freeze)
    for name in names:
        frozen.file_of(name, names, config.weights)


# --- building ---------------------------------------------------------------------------------


def _build(net: str, sample: pf.datasets.SampleSpec) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a freshly drawn net without its last layer, and the starts of names left out.

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


def _extractor(net: str, config: PretrainedConfig, sample: pf.datasets.SampleSpec) -> nn.Module:
    """Return a client's extractor; its frozen blocks are those of all other clients."""
    if config.weights is None:
        return _build(net, sample)[0]
    file = frozen.file_of(net, [net], config.weights)
    changed = file.stat().st_mtime_ns if file else 0
    with torch.device("cpu"):
        extractor = _loaded(net, config, sample, changed)
    if torch.empty(0).device.type == "meta":  # only sizes are asked for
        return _build(net, sample)[0]
    return deepcopy(extractor)


def _projected(
    build: Callable[[pf.datasets.SampleSpec, int, int], pf.models.SplitModel],
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """Return a model with a trained layer between its frozen net and the features."""
    model = build(sample, num_classes, feature_dim)
    with torch.no_grad():
        width = model.extractor.eval()(sample.zeros(1)).flatten(1).shape[1]
    projection = nn.Linear(width, feature_dim)
    model.extractor = nn.Sequential(model.extractor.train(), nn.Flatten(), projection)
    return model


@lru_cache(maxsize=16)
def _loaded(
    net: str, config: PretrainedConfig, sample: pf.datasets.SampleSpec, changed: int
) -> nn.Module:
    """Return the extractor that all clients of a net begin with."""
    with torch.random.fork_rng(devices=[]):  # a client's own draws are for its head
        module, left_out = _build(net, sample)
    file = frozen.file_of(net, [net], config.weights)
    where = f"weights={file or 'default'}"
    weights = frozen.read_weights(file) if file else _downloaded(net)
    frozen.load_weights(module, weights, left_out, f"{where} for {net}")
    if imagenet_extractor(net).channels_last:
        module = module.to(memory_format=torch.channels_last)
    published = import_torchvision().get_model_weights(net).DEFAULT.transforms()
    scaled = frozen.Scaled(published.mean, published.std)
    if config.freeze == "all":
        return frozen.Frozen(nn.Sequential(scaled, module), computed=config.keep_features)
    if config.freeze != "none":
        blocks = frozen.blocks_of(module)
        if config.freeze > len(blocks):
            raise pf.UsageError(
                f"freeze={config.freeze}: {net} has {len(blocks)} blocks",
                f"they are: {', '.join(blocks)}",
                "give a smaller number, or all",
            )
        for path in blocks[: config.freeze]:
            module.set_submodule(path, frozen.Frozen(module.get_submodule(path)))
    return nn.Sequential(frozen.Frozen(scaled), module)


# --- weights ----------------------------------------------------------------------------------


def _downloaded(net: str) -> Mapping[str, Tensor]:
    published = import_torchvision().get_model_weights(net).DEFAULT
    try:
        return cast(Mapping[str, Tensor], published.get_state_dict(check_hash=True))
    except (OSError, RuntimeError, ValueError) as error:
        raise pf.UsageError(
            f"weights=default of {net} cannot be downloaded: {error}",
            do="give --set models.weights=FILE, a safetensors file",
        ) from None

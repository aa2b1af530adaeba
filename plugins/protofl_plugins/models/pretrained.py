"""Model groups of a library's nets, with pretrained weights, of which blocks may be frozen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import safetensors.torch
import torch
from pydantic import AfterValidator, NonNegativeInt, model_validator
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.frozen import Frozen, Scaled, blocks_of
from protofl_plugins.models.group import ModelGroup
from protofl_plugins.models.parts import Extractor


def _absolute(value: Path | str | None) -> Path | str | None:
    return pf.expand_user(value).absolute() if isinstance(value, Path) else value


class PretrainedConfig(pf.Config):
    """Options of a group whose nets may be pretrained."""

    names: str = pf.Field("", description="the library's names of models, with commas between")
    weights: Annotated[Literal["default"] | Path | None, AfterValidator(_absolute)] = pf.Field(
        None,
        description="pretrained weights: default (downloaded), a safetensors file, or a folder "
        "with NAME.safetensors of each net. None: drawn from the seed, or default with freeze",
    )
    trust_pickle: bool = pf.Field(
        False, consent=True, description="also open weights that are a pickle (.pth, .bin)"
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
        description="side in pixels to which smaller images are enlarged; pretrained nets for "
        "images of one size have that by default",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_pretrained(cls, options: Any) -> Any:  # noqa: ANN401 - pydantic's own type
        """Fill in what pretrained weights imply."""
        if not isinstance(options, dict):
            return options
        if options.get("freeze", "none") not in ("none", 0, "0"):
            options = {"weights": "default", **options}
        if options.get("weights") is not None and (side := cls._fixed_side(options)):
            options = {"min_side": side, **options}
        return options

    @classmethod
    def _fixed_side(cls, options: dict[str, Any]) -> int | None:
        """Return the side in pixels that the weights are bound to, if they are."""
        return None


@dataclass(frozen=True)
class Library:
    """A library of pretrained nets.

    Attributes:
        name: Its name, which is the group's.
        names: Returns the names of all its nets.
        build: ``build(net, sample)`` returns the net without its last layer, freshly drawn, and
            the starts of the names of those weights that it has left out.
        download: ``download(net)`` returns the library's own weights.
        statistics: ``statistics(net)`` returns mean and deviation of each channel of the images
            in 0…1 that the weights want.
        extractor: ``extractor(net, build)`` returns the extractor with its fixed rules.
    """

    name: str
    names: Callable[[], list[str]]
    build: Callable[[str, pf.datasets.SampleSpec], tuple[nn.Module, tuple[str, ...]]]
    download: Callable[[str], Mapping[str, Tensor]]
    statistics: Callable[[str], tuple[Sequence[float], Sequence[float]]]
    extractor: Callable[[str, Callable[[pf.datasets.SampleSpec], nn.Module]], Extractor]


class LibraryGroup(ModelGroup):
    """A group of a library's nets, in the order given."""

    argument = "names"
    Config = PretrainedConfig
    library: Library

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The nets without their last linear layer, each with a linear head K → C.

        Raises:
            UsageError: A name is missing, unknown or given twice, or options contradict each other.
        """
        config = cast(PretrainedConfig, config)
        names = [name.strip() for name in config.names.split(",")]
        _check(self.library, names, config)
        result = [
            self.library.extractor(net, partial(_extractor, self.library, net, config)).with_head()
            for net in names
        ]
        if config.freeze == "all" and config.projection:
            result = [replace(each, build=partial(_projected, each.build)) for each in result]
        if config.keep_features:
            result = [replace(each, precomputed=_frozen_part) for each in result]
        return result


def _check(library: Library, names: list[str], config: PretrainedConfig) -> None:
    known = library.names()
    for position, name in enumerate(names):
        if not name:
            raise pf.UsageError(
                f"the model group {library.name} needs names of models",
                do=f"write for example: --models {library.name}:{EXAMPLE}",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            raise pf.UsageError(
                f"unknown {library.name} model {name!r}",
                f"did you mean {' or '.join(map(repr, near))}?" if near
                else f"known: {', '.join(known)}",
            )  # fmt: skip
        if name in names[:position]:
            raise pf.UsageError(
                f"{library.name} model {name!r} is named twice",
                do="name each architecture once; client i gets number i mod their number",
            )
    if config.freeze not in ("none", 0) and config.weights is None:
        raise pf.UsageError(
            f"freeze={config.freeze} needs pretrained weights, and weights is None",
            do="give --set models.weights=default, or a safetensors file",
        )
    if config.keep_features and config.freeze != "all":
        raise pf.UsageError(
            f"keep_features needs freeze=all, and freeze is {config.freeze}",
            do="give --set models.freeze=all, or leave keep_features out",
        )
    for name in names:
        _file_of(name, names, config.weights)


EXAMPLE = "resnet18,resnet34"


def _file_of(net: str, names: Sequence[str], weights: Path | str | None) -> Path | None:
    """Return the weights file of a net, if it has one."""
    if not isinstance(weights, Path):
        return None
    if weights.is_dir():
        result = weights / f"{net}.safetensors"
        if not result.is_file():
            raise pf.UsageError(
                f"weights={weights} has no {result.name}",
                f"it has: {', '.join(sorted(f.name for f in weights.iterdir())[:10])}",
                "name each net's file NAME.safetensors",
            )
        return result
    if not weights.is_file():
        raise pf.UsageError(
            f"weights={weights} is not a file",
            do="give default, a safetensors file, or a folder with one of each net",
        )
    if len(names) > 1:
        raise pf.UsageError(
            f"weights={weights} is one file for {len(names)} nets",
            do="give a folder with NAME.safetensors of each net",
        )
    return weights


# --- building ---------------------------------------------------------------------------------


def _extractor(
    library: Library, net: str, config: PretrainedConfig, sample: pf.datasets.SampleSpec
) -> nn.Module:
    """Return a client's extractor; its frozen blocks are those of all other clients."""
    if config.weights is None:
        return library.build(net, sample)[0]
    file = _file_of(net, [net], config.weights)
    changed = file.stat().st_mtime_ns if file else 0
    with torch.device("cpu"):
        extractor = _loaded(library, net, config, sample, changed)
    if torch.empty(0).device.type == "meta":  # only sizes are asked for
        return library.build(net, sample)[0]
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


def _frozen_part(model: pf.models.SplitModel) -> nn.Module:
    """Return what maps images to features that are not trained."""
    extractor = model.extractor
    return extractor[0] if isinstance(extractor, nn.Sequential) else extractor


@lru_cache(maxsize=16)
def _loaded(
    library: Library,
    net: str,
    config: PretrainedConfig,
    sample: pf.datasets.SampleSpec,
    changed: int,
) -> nn.Module:
    """Return the extractor that all clients of a net begin with."""
    with torch.random.fork_rng(devices=[]):  # a client's own draws are for its head
        module, left_out = library.build(net, sample)
    extractor = library.extractor(net, lambda _: module)
    file = _file_of(net, [net], config.weights)
    where = f"weights={file or 'default'}"
    weights = _read(file, config.trust_pickle) if file else _downloaded(library, net)
    _load(module, weights, left_out, f"{where} for {net}")
    if extractor.channels_last:
        module = module.to(memory_format=torch.channels_last)
    scaled = Scaled(*library.statistics(net))
    if config.freeze == "all":
        return Frozen(nn.Sequential(scaled, module), computed=config.keep_features)
    if config.freeze != "none":
        blocks = blocks_of(module)
        if config.freeze > len(blocks):
            raise pf.UsageError(
                f"freeze={config.freeze}: {net} has {len(blocks)} blocks",
                f"they are: {', '.join(blocks)}",
                "give a smaller number, or all",
            )
        for path in blocks[: config.freeze]:
            module.set_submodule(path, Frozen(module.get_submodule(path)))
    return nn.Sequential(Frozen(scaled), module)


# --- weights ----------------------------------------------------------------------------------


def _downloaded(library: Library, net: str) -> Mapping[str, Tensor]:
    try:
        return library.download(net)
    except (OSError, RuntimeError, ValueError) as error:
        raise pf.UsageError(
            f"weights=default of {net} cannot be downloaded: {error}",
            do="give --set models.weights=FILE, a safetensors file",
        ) from None


def _read(file: Path, trust_pickle: bool) -> Mapping[str, Tensor]:
    """Read a weights file.

    Raises:
        UsageError: It is damaged, or a pickle without consent.
    """
    try:
        return cast(Mapping[str, Tensor], safetensors.torch.load_file(file))
    except (OSError, safetensors.SafetensorError) as error:
        problem = str(error)
    with file.open("rb") as stream:
        pickle = stream.read(2) in (b"PK", b"\x80\x02")
    if not pickle:
        raise pf.UsageError(
            f"weights={file} is not a safetensors file: {problem}",
            do="write one: safetensors.torch.save_file(model.state_dict(), FILE)",
        )
    if not trust_pickle:
        raise pf.UsageError(
            f"weights={file} is a pickle, which can run code",
            do="convert it to safetensors, or give --set models.trust_pickle=true",
        )
    try:
        result = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise pf.UsageError(f"weights={file} cannot be read: {error}") from None
    if not (isinstance(result, dict) and all(isinstance(v, Tensor) for v in result.values())):
        raise pf.UsageError(
            f"weights={file} is not a state_dict", do="save model.state_dict() alone"
        )
    return result


@torch.no_grad()
def _load(
    net: nn.Module, weights: Mapping[str, Tensor], left_out: tuple[str, ...], where: str
) -> None:
    """Copy pretrained weights into a net.

    Raises:
        UsageError: A tensor is missing, unknown, or has another shape.
    """
    targets = net.state_dict()  # no parameters: `unset_model` would leave those as they are
    kept = {name: w for name, w in weights.items() if not name.startswith(left_out)}
    missing = [n for n in targets if n not in kept and not n.endswith("num_batches_tracked")]
    unknown = [name for name in kept if name not in targets]
    if missing or unknown:
        what = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
        raise pf.UsageError(f"{where}: {what}", do="give the weights of this net")
    for name, tensor in kept.items():
        if tensor.shape != targets[name].shape:
            raise pf.UsageError(
                f"{where}: {name} has the shape {list(tensor.shape)}, "
                f"and the net has {list(targets[name].shape)}",
                do="give the weights of this net for images of this size: "
                "--set models.min_side=224 enlarges smaller images",
            )
        if not torch.isfinite(tensor).all():
            raise pf.UsageError(f"{where}: {name} has NaN or infinite values")
        targets[name].copy_(tensor)

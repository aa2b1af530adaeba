"""timm's image models, written in the group's name: ``--models timm:vit_tiny_patch16_224``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.pretrained import Library, LibraryGroup, PretrainedConfig


def _timm() -> Any:  # noqa: ANN401 - a module without types
    try:
        import timm
    except ImportError:
        raise pf.UsageError(
            "models of timm need the package timm", do="pip install 'protofl[timm]'"
        ) from None
    return timm


def _names() -> list[str]:
    result: list[str] = _timm().list_models()
    return result


def _build(net: str, sample: pf.datasets.SampleSpec) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the net without its classifier.

    Raises:
        UsageError: The net can't take such images.
    """
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": sample.shape[0]}
    try:
        try:
            module: nn.Module = _timm().create_model(net, img_size=sample.shape[1:], **options)
        except TypeError:  # a net for images of any size has no such option
            module = _timm().create_model(net, **options)
        with torch.no_grad():
            module.eval()(sample.zeros(1))
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        side = _about(net)["input_size"][-1]
        raise pf.UsageError(
            f"timm's {net} cannot take images of {'×'.join(map(str, sample.shape[1:]))}: {error}",
            do=f"enlarge them: --set models.min_side={side}",
        ) from None
    last = _about(net)["classifier"] or ()
    return module.train(), tuple(f"{name}." for name in ([last] if isinstance(last, str) else last))


def _about(net: str) -> dict[str, Any]:
    card = _timm().get_pretrained_cfg(net)
    return dict(card.to_dict())


def _download(net: str) -> Mapping[str, Tensor]:
    result: Mapping[str, Tensor] = _timm().create_model(net, pretrained=True).state_dict()
    return result


def _statistics(net: str) -> tuple[Sequence[float], Sequence[float]]:
    about = _about(net)
    return about["mean"], about["std"]


class TimmConfig(PretrainedConfig):
    """Options of a group of timm's nets."""

    @classmethod
    def _fixed_side(cls, options: dict[str, Any]) -> int | None:
        """Return the largest side of the nets that take images of one size, as a ViT does."""
        names = {name.strip() for name in str(options.get("names", "")).split(",")}
        cards = [_about(name) for name in names.intersection(_names())]
        return max(
            (card["input_size"][-1] for card in cards if card["fixed_input_size"]), default=None
        )


class TimmGroup(LibraryGroup):
    """Any of timm's image models: timm:NAME,NAME,... in the order given (needs timm)."""

    Config = TimmConfig
    library = Library(
        name="timm",
        names=_names,
        build=_build,
        download=_download,
        statistics=_statistics,
        extractor=Extractor,
    )

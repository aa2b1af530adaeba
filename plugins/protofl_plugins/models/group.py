"""Base of all model groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import AfterValidator

import protofl as pf
from protofl_plugins.models.bottleneck import RESNET56
from protofl_plugins.models.frozen import absolute, with_frozen_extractor
from protofl_plugins.models.parts import Extractor


class NormConfig(pf.Config):
    """The normalisation layers of the nets."""

    norm: Literal["batch", "group"] = pf.Field(
        "batch",
        description="group: GroupNorm in place of all BatchNorm layers, so that no statistics are "
        "averaged; the number of groups is the largest divisor of the c channels up to 32 and c/2",
    )


class GroupConfig(NormConfig):
    """The normalisation layers, and extractors that are not trained."""

    frozen: Annotated[Path | None, AfterValidator(absolute)] = pf.Field(
        None,
        description="extractors that are not trained: a file of protofl export for the group's "
        "net, or a folder with NAME.safetensors of each net. Their features are computed once",
    )


class ModelGroup:
    """A group of extractors with a linear classifier each, for images of three channels.

    Attributes:
        extractors: The extractors in order.
        feature_dim: Default K.
        kinds: The kinds of samples that they take.
        min_side: Smaller images are brought to this side.
        channels: The images' channels, or None for the data's own.
        server_architecture: The model that a server with a model of its own trains.
        server_extractors: Further extractors that no client has for its own.
        auxiliary_architecture: The auxiliary model of FML and FedKD; None for the first of the
            group, as in the published code of FedTGP and FedKTL.
    """

    extractors: tuple[Extractor, ...] = ()
    feature_dim: int = 512
    kinds: tuple[str, ...] = ("image",)
    min_side: int = 32
    channels: int | None = 3
    server_architecture: str = "resnet56"
    server_extractors: tuple[Extractor, ...] = (RESNET56,)
    auxiliary_architecture: str | None = None

    class Config(GroupConfig):
        """The normalisation layers, and extractors that are not trained."""

    def members(self, config: pf.Config) -> tuple[Extractor, ...]:
        """Return the extractors for the options."""
        return self.extractors

    def nets(self, config: pf.Config) -> list[pf.models.Architecture]:
        """Return the extractors in order, each with a linear head K → C."""
        return [extractor.with_head() for extractor in self.members(config)]

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The group's nets, with their extractors from files if these are frozen."""
        nets, weights = self.nets(config), cast(GroupConfig, config).frozen
        if weights is None:
            return nets
        names = [net.name for net in nets]
        return [with_frozen_extractor(net, names, weights) for net in nets]

    @pf.hookimpl
    def server_architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The server's extractors, each with a linear head; the first is FedPKD's model."""
        return [extractor.with_head() for extractor in self.server_extractors]


class SizedConfig(GroupConfig):
    """The side of small images."""

    min_side: int = pf.Field(
        ModelGroup.min_side,
        ge=16,
        le=1024,
        from_data=True,
        description="side in pixels to which smaller images are enlarged, at least 16; a larger "
        "side costs time in proportion to its square",
    )


class SizedGroup(ModelGroup):
    """A group of nets for images of any side from 16 pixels, with an option for small images.

    Papers train these nets on images of 32×32 and more, which stay as they are. Smaller images are
    enlarged to 32 by default; a data set may have a default of its own.
    """

    class Config(SizedConfig):
        """The side of small images."""

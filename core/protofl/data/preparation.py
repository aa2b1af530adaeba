"""How stored samples become what a model sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from protofl.data.spec import SampleSpec
from protofl.errors import UsageError


class Preparation(Protocol):
    """Makes of stored samples what a model sees."""

    def __call__(self, x: Tensor, channels_last: bool) -> Tensor:
        """Prepare samples B×…; ``channels_last`` is the layout of images, and nothing to others."""
        ...

    def seen(self, stored: SampleSpec) -> SampleSpec:
        """What a model sees of samples that are stored so."""
        ...


@dataclass(frozen=True)
class Pixels:
    """The preparation of images.

    Attributes:
        channels: Channels that the model takes; grey images are repeated.
        side: Smallest side; smaller images are brought to it bilinearly.
    """

    channels: int
    side: int

    def __call__(self, x: Tensor, channels_last: bool) -> Tensor:
        """Normalise uint8 to x/127.5 − 1 (floats are used as they are), resize, lay out."""
        x = x.to(torch.float32).div_(127.5).sub_(1) if x.dtype == torch.uint8 else x.float()
        size = self._size(x.shape[2], x.shape[3])
        if size != x.shape[2:]:
            x = torch.nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=False)
        if x.shape[1] < self.channels:
            x = x.expand(-1, self.channels, -1, -1)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return x.to(torch.get_default_dtype()).contiguous(memory_format=layout)

    def seen(self, stored: SampleSpec) -> SampleSpec:
        """Images of the model's channels, the smaller side at least `side`."""
        channels, height, width = stored.shape
        return replace(stored, shape=(max(channels, self.channels), *self._size(height, width)))

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width as the model sees them; their ratio stays."""
        scale = self.side / min(height, width)
        if scale <= 1:
            return height, width
        return max(self.side, round(height * scale)), max(self.side, round(width * scale))


def pixels_for(
    stored: SampleSpec, name: str, channels: int | None, side: int
) -> tuple[Pixels, list[str]]:
    """How images become what models take, and lines that say what is done to them.

    Args:
        stored: The images.
        name: The models, for errors and lines.
        channels: Channels that the models take; None for any.
        side: The smallest side that they take.

    Raises:
        UsageError: The models take another number of channels, and the images are not grey.
    """
    notes, has = [], stored.shape[0]
    channels = channels or has
    if has != channels:
        if has != 1:
            raise UsageError(f"{name} takes images of {channels} channels, the data have {has}")
        notes.append(f"grey images are repeated to {channels} channels for {name}")
    smaller = min(stored.shape[1:])
    if smaller < side:
        notes.append(f"images of {smaller} px are brought to {side} px for {name} (bilinear)")
    return Pixels(channels, side), notes


@dataclass(frozen=True)
class AsStored:
    """The preparation of series, tokens and tables: floats of torch's default, or token ids."""

    def __call__(self, x: Tensor, channels_last: bool) -> Tensor:
        """The samples in the type that models take."""
        return x.to(torch.get_default_dtype()) if x.is_floating_point() else x

    def seen(self, stored: SampleSpec) -> SampleSpec:
        """What is stored."""
        return stored

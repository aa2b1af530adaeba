"""Specs of samples: kind and shape, and what prepares stored samples for models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from protofl.data.tasks import CLASSIFICATION, Task
from protofl.errors import UsageError

Kind = Literal["image", "series", "tokens", "table"]


KINDS: tuple[Kind, ...] = get_args(Kind)


PLURAL = {"image": "images", "series": "series", "tokens": "token sequences", "table": "tables"}
"""{kind: plural noun for messages}."""


_AXES = {
    "image": ("channels", "height", "width"),
    "series": ("channels", "length"),
    "tokens": ("length",),
    "table": ("features",),
}


@dataclass(frozen=True)
class SampleSpec:
    """The kind and shape of a sample, as a model's input or as stored.

    Attributes:
        shape: A sample's shape, without the batch's axis: (channels, height, width) of an image,
            (channels, length) of a series, (length,) of a token sequence, (features,) of a row of
            a table.
        kind: ``image``, ``series``, ``tokens`` or ``table``.
        vocabulary: Number of token ids V, which are 0…V-1; 0 for the other kinds.
        padding: The id at the end of short token sequences; None without padding.
        task: What a model's outputs for a sample are trained for.
    """

    shape: tuple[int, ...]
    kind: Kind = "image"
    vocabulary: int = 0
    padding: int | None = None
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        """Check that its parts fit together."""
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is not a kind of sample", f"kinds: {', '.join(KINDS)}")
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        axes = _AXES[self.kind]
        if len(self.shape) != len(axes) or min(self.shape) < 1:
            raise UsageError(
                f"{self.shape} is not a shape of {PLURAL[self.kind]}",
                f"theirs is ({', '.join(axes)}), each at least 1",
            )
        if self.kind != "tokens" and (self.vocabulary or self.padding is not None):
            raise UsageError(f"{PLURAL[self.kind]} have no vocabulary and no padding")
        if self.kind == "tokens" and self.vocabulary < 2:
            raise UsageError(f"token sequences need a vocabulary, not of {self.vocabulary} ids")
        if self.padding is not None and not 0 <= self.padding < self.vocabulary:
            raise UsageError(
                f"the padding id {self.padding} is not an id of the vocabulary",
                f"ids go from 0 to {self.vocabulary - 1}",
            )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of a prepared batch: int64 for tokens, torch's default for others."""
        return torch.int64 if self.kind == "tokens" else torch.get_default_dtype()

    def is_like(self, other: SampleSpec) -> bool:
        """Return True if one model input serves both: images of any size with the same channels."""
        if self.kind == other.kind == "image":
            return self.shape[0] == other.shape[0]
        mine = (self.kind, self.shape, self.vocabulary)
        return mine == (other.kind, other.shape, other.vocabulary)

    def zeros(self, count: int) -> Tensor:
        """A batch of ``count`` samples that are all zero, as a model sees it."""
        return torch.zeros(count, *self.shape, dtype=self.dtype)

    def __str__(self) -> str:
        """Return kind and size: ``images 3×32×32``, ``rows of 13 numbers``."""
        if self.kind == "tokens":
            return f"sequences of {self.shape[0]:,} tokens ({self.vocabulary:,} ids)"
        if self.kind == "table":
            return f"rows of {self.shape[0]:,} numbers"
        return f"{PLURAL[self.kind]} {'×'.join(map(str, self.shape))}"


def in_words(kinds: Sequence[str]) -> str:
    """Kinds as a phrase: ``images``, ``images or tables``."""
    plurals = [PLURAL[kind] for kind in kinds]
    return " or ".join(filter(None, [", ".join(plurals[:-1]), *plurals[-1:]]))


class ModelInput(Protocol):
    """Prepares stored samples for a model."""

    def __call__(self, x: Tensor, channels_last: bool) -> Tensor:
        """Prepare samples B×…; ``channels_last`` is the layout of images, and nothing to others."""
        ...

    def seen(self, stored: SampleSpec) -> SampleSpec:
        """Return the spec of prepared samples."""
        ...


@dataclass(frozen=True)
class Pixels:
    """The model input of images.

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
    """Return the input of images for a model, and notes about it.

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
    """The model input of series, tokens, tables: floats of torch's default, or token ids."""

    def __call__(self, x: Tensor, channels_last: bool) -> Tensor:
        """The samples in the type that models take."""
        return x.to(torch.get_default_dtype()) if x.is_floating_point() else x

    def seen(self, stored: SampleSpec) -> SampleSpec:
        """Return the stored spec."""
        return stored

"""Image generators on the server: the interface of plugins, and their use in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from protofl.data.dataset import Dataset
from protofl.errors import UsageError

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""


@dataclass(frozen=True)
class Outline:
    """The sizes of a generator, known before it is loaded; enough for the dry run.

    Attributes:
        latent_dim: H.
        side: Pixels of an image's side.
        channels: Channels of an image.
        num_classes: Classes on which it can be conditioned; 0 for an unconditional one, None
            where only loading tells.
    """

    latent_dim: int = 512
    side: int = 32
    channels: int = 3
    num_classes: int | None = 0


class Generator(Protocol):
    """A frozen generator, as a plugin's ``open_generator`` returns it.

    Attributes:
        outline: Its sizes, ``num_classes`` included.
    """

    outline: Outline

    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Valid latent vectors [count, H], w = G_m(ε), on the generator's device.

        Args:
            count: How many.
            generator: A CPU generator, the only source of chance.
            labels: [count] int for a conditional generator; None for random classes.
        """
        ...

    def images(self, latents: Tensor) -> Tensor:
        """Images G_s(w), [n, channels, side, side] in −1…1, of latent vectors [n, H]."""
        ...


class ImageSource:
    """The run's generator: loaded when it is first used, and its images as the data are.

    Args:
        name: Its name, for errors.
        outline: Returns its sizes without loading it, or None if it can't.
        open: Loads it.
        data: The run's data, whose channels, size and range the images get.
        device: Where it computes.
        dry: Load nothing; latents and images are zeros of their shape.
    """

    def __init__(
        self,
        name: str,
        outline: Callable[[], Outline | None],
        open: Callable[[], Generator | None],
        data: Dataset,
        device: torch.device,
        *,
        dry: bool = False,
    ) -> None:
        self.name = name
        self._tell, self._load = outline, open
        self._data, self._device, self._dry = data, device, dry
        self._opened: Generator | None = None
        self._bounds: tuple[float, float] | None = None
        self._outline: Outline | None = None

    def unopened(self) -> ImageSource:
        """Return a source for a dry run: it loads nothing, latents and images are zeros."""
        return ImageSource(self.name, self._tell, self._load, self._data, self._device, dry=True)

    @property
    def outline(self) -> Outline:
        """The generator's sizes; in a dry run, those that are known before it is loaded."""
        if not self._dry:
            return self._open().outline
        if self._outline is None:
            self._outline = self._tell() or Outline(num_classes=None)
        return self._outline

    @torch.no_grad()
    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Valid latent vectors [count, H]."""
        if self._dry:
            return torch.zeros(count, self.outline.latent_dim, device=self._device)
        return self._open().sample_latents(count, generator, labels).float()

    @torch.no_grad()
    def images(self, latents: Tensor) -> Tensor:
        """Images of latent vectors, [n, channels, H, W] float32 as the data are."""
        channels, height, width = self._data.x.shape[1:]
        if self._dry:
            return torch.zeros(len(latents), channels, height, width, device=self._device)
        x = self._open().images(latents).float().clamp(-1, 1)
        x = to_channels(to_size(x, height, width), channels)
        low, high = self.bounds
        return (x + 1) * ((high - low) / 2) + low

    def _open(self) -> Generator:
        if self._opened is None:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                self._opened = self._load()
            if self._opened is None:
                raise UsageError(f"generator/{self.name} opens no generator")
        return self._opened

    @property
    def bounds(self) -> tuple[float, float]:
        """The stored values that models see as −1 and 1: bytes are normalised, floats are not."""
        if self._bounds is None:
            x = self._data.x
            self._bounds = (-1.0, 1.0)
            if x.dtype != torch.uint8:
                low, high = torch.aminmax(x)
                self._bounds = (float(low), float(high))
        return self._bounds


def to_size(x: Tensor, height: int, width: int) -> Tensor:
    """Images brought to a size, bilinearly and without aliasing."""
    if x.shape[2:] == (height, width):
        return x
    return interpolate(
        x, size=(height, width), mode="bilinear", align_corners=False, antialias=True
    )


def to_channels(x: Tensor, channels: int) -> Tensor:
    """Images brought to a number of channels: to grey by its usual weights, grey repeated."""
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 3:
        x = (x * x.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    elif x.shape[1] > 1:
        x = x.mean(1, keepdim=True)
    return x.repeat(1, channels, 1, 1)

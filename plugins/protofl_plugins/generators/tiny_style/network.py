"""A small style-based generator: mapping network G_m and synthesis network G_s.

After Karras et al., "A Style-Based Generator Architecture for Generative Adversarial Networks"
(CVPR 2019) and its successor's weight demodulation (CVPR 2020), at a size that fits into a
package. ``w = G_m(ε)`` is the only factor of an image: there is no noise input.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LATENT = 512
"""Dimensions of ε and of w, H."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a generator.

    Attributes:
        side: Pixels of an image's side: 32 or 64.
        num_classes: Classes of the conditional mapping network; 0 for an unconditional one.
        channels: Channels of an image.
        code: Width of the layer before w; W lies in a subspace of so many dimensions.
        widths: Channels of the feature maps from 4×4 up.
    """

    side: int = 32
    num_classes: int = 0
    channels: int = 3
    code: int = 128
    widths: tuple[int, ...] = (128, 64, 48, 24)


class Mapping(nn.Module):
    """G_m: noise ε [n, 512], and labels where it is conditional, to w [n, 512]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.num_classes, 64) if shape.num_classes else None
        self.trunk = nn.Sequential(
            nn.Linear(LATENT + (64 if shape.num_classes else 0), 384),
            nn.LeakyReLU(0.2),
            nn.Linear(384, 384),
            nn.LeakyReLU(0.2),
            nn.Linear(384, shape.code),
        )
        self.last = nn.Linear(shape.code, LATENT)

    def codes(self, noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the input of `last`, [n, code]."""
        x = noise * noise.square().mean(1, keepdim=True).add(1e-8).rsqrt()
        if self.embedding is not None:
            if labels is None:
                raise ValueError("a conditional mapping network needs labels")
            x = torch.cat([x, self.embedding(labels)], 1)
        return cast(Tensor, self.trunk(x))

    def forward(self, noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """Vectors w."""
        return cast(Tensor, self.last(self.codes(noise, labels)))


class StyleConv(nn.Module):
    """A convolution whose input channels are scaled by w, with demodulated output."""

    def __init__(self, channels_in: int, channels_out: int, size: int = 3) -> None:
        super().__init__()
        self.style = nn.Linear(LATENT, channels_in)
        self.weight = nn.Parameter(torch.randn(channels_out, channels_in, size, size))
        self.bias = nn.Parameter(torch.zeros(channels_out))
        self.demodulate = size > 1
        with torch.no_grad():
            self.style.weight.mul_(0.5)
            self.style.bias.fill_(1.0)
            self.weight.mul_((channels_in * size * size) ** -0.5)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """Features [n, channels_out, H, W]."""
        style = self.style(w)
        y = F.conv2d(x * style[:, :, None, None], self.weight, padding=self.weight.shape[-1] // 2)
        if self.demodulate:
            power = style.square() @ self.weight.square().sum((2, 3)).t()
            y = y * power.add(1e-8).rsqrt()[:, :, None, None]
        return y + self.bias[:, None, None]


class Synthesis(nn.Module):
    """G_s: w [n, 512] to images [n, channels, side, side] in −1…1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        widths = shape.widths
        self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.first = nn.ModuleList(StyleConv(a, b) for a, b in pairs)
        self.second = nn.ModuleList(StyleConv(b, b) for _, b in pairs[1:])
        self.to_image = nn.ModuleList(StyleConv(b, shape.channels, 1) for _, b in pairs)

    def forward(self, w: Tensor) -> Tensor:
        """Images."""
        x = self.start.expand(len(w), -1, -1, -1)
        image = torch.zeros((), dtype=w.dtype, device=w.device)
        for level, first in enumerate(self.first):
            if level:
                x, image = _double(x), _double(image)
            x = F.leaky_relu(first(x, w), 0.2) * 2**0.5
            if level:
                x = F.leaky_relu(self.second[level - 1](x, w), 0.2) * 2**0.5
            image = image + self.to_image[level](x, w)
        return torch.tanh(image)


class TinyStyleNetwork(nn.Module):
    """G_m and G_s."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if len(shape.widths) != shape.side.bit_length() - 2 or shape.side & (shape.side - 1):
            raise ValueError(f"side {shape.side} does not fit {len(shape.widths)} feature maps")
        self.shape = shape
        self.mapping = Mapping(shape)
        self.synthesis = Synthesis(shape)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def shape_for(side: int, num_classes: int, channels: int) -> Shape:
    """The sizes for images of 32 or 64 pixels."""
    widths = (128, 64, 48, 24) if side == 32 else (128, 64, 48, 24, 16)
    return Shape(side, num_classes, channels, widths=widths)


def save_network(network: TinyStyleNetwork, path: Path, about: dict[str, str]) -> None:
    """Write a generator as safetensors, in half precision, with its sizes and what it is."""
    tensors = {k: v.detach().cpu().half().contiguous() for k, v in network.state_dict().items()}
    header = {"protofl": json.dumps({"shape": asdict(network.shape), **about}, sort_keys=True)}
    path.touch()
    mode = path.stat().st_mode  # as the user's umask wants it; save_file writes 0600
    safetensors.torch.save_file(tensors, path, metadata=header)
    path.chmod(mode)


def read_about(path: Path) -> dict[str, object]:
    """Read the description in a file of `save_network`.

    Raises:
        ValueError: The file has another content.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["protofl"])
            about["shape"]["widths"] = tuple(about["shape"]["widths"])
            return cast(dict[str, object], about)
    except (
        OSError, KeyError, ValueError, TypeError, RecursionError, safetensors.SafetensorError
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is not a tiny-style file: {error}") from error


def load_network(path: Path) -> TinyStyleNetwork:
    """Read a file of `save_network`.

    Raises:
        ValueError: The file is not a tiny-style generator.
    """
    about = read_about(path)
    network = TinyStyleNetwork(Shape(**cast("dict[str, Any]", about["shape"])))
    tensors = {k: v.float() for k, v in safetensors.torch.load_file(path).items()}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path} is not a tiny-style file: {error}") from error
    return network

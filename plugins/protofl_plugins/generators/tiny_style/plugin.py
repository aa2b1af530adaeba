"""The plugin `tiny-style`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor

import protofl as pf
from protofl_plugins.generators.tiny_style.network import (
    LATENT,
    TinyStyleNetwork,
    load_network,
    read_about,
    save_network,
    shape_for,
)
from protofl_plugins.generators.tiny_style.train import Training, train

SHIPPED = Path(__file__).parent.parent / "weights" / "tiny-style-cifar10.safetensors"
"""The file that comes with the package; `read_about` says what it was trained on."""


def _absolute(path: Path | None) -> Path | None:
    return pf.expand_user(path).absolute() if path else None


class TinyStyle:
    """A small style-based generator, 32 or 64 px; trained weights come with the package."""

    class Config(Training):
        """Options. All but `weights` concern ``protofl generator train`` only."""

        weights: Annotated[Path | None, AfterValidator(_absolute)] = pf.Field(
            None, description="a file of `protofl generator train`; None for the one shipped"
        )
        side: int = pf.Field(32, description="side of the images to learn, 32 or 64", ge=32, le=64)
        classes: bool = pf.Field(True, description="condition the mapping network on the class")

    @pf.hookimpl
    def outline(self, config: Config, data_dir: Path) -> pf.datasets.Outline:
        """The sizes that the file's header tells."""
        path = config.weights or SHIPPED
        try:
            shape: Any = read_about(path)["shape"]
        except ValueError as error:
            raise _unreadable(error) from None
        return pf.datasets.Outline(LATENT, shape["side"], shape["channels"], shape["num_classes"])

    @pf.hookimpl
    def open_generator(
        self, config: Config, device: torch.device, data_dir: Path
    ) -> TinyStyleGenerator:
        """Load the file."""
        try:
            network = load_network(config.weights or SHIPPED)
        except ValueError as error:
            raise _unreadable(error) from None
        return TinyStyleGenerator(network, device)

    @pf.hookimpl
    def train_generator(
        self, config: Config, images: pf.datasets.Dataset, report: Callable[[str], None], out: Path
    ) -> dict[str, str]:
        """Train on the training part and write the network in half precision."""
        if config.side not in (32, 64):
            raise pf.UsageError(f"side={config.side} is not possible", do="give 32 or 64")
        if images.num_train < 2 * config.batch:
            raise pf.UsageError(
                f"{images.num_train} images are too few", do=f"have at least {2 * config.batch}"
            )
        x, y = images.x[: images.num_train], images.y[: images.num_train]
        if x.dtype != torch.uint8:
            low, high = torch.aminmax(x)
            x = (x - low) / (high - low).clamp_min(1e-8) * 2 - 1
        shape = shape_for(config.side, images.num_classes if config.classes else 0, x.shape[1])
        network = train(shape, x, y if config.classes else None, config, report)
        about = {
            "trained_on": images.note or f"{len(x)} images",
            "data": images.digest,
            "training": " ".join(
                f"{name}={getattr(config, name)}" for name in Training.model_fields
            ),
        }
        save_network(network, out, about)
        return {
            "images": f"{len(x)}",
            "parameters": f"{sum(p.numel() for p in network.parameters())}",
        }


class TinyStyleGenerator:
    """An opened `tiny-style` network, frozen."""

    def __init__(self, network: TinyStyleNetwork, device: torch.device) -> None:
        self._network = network.to(device).requires_grad_(False).eval()
        self._device = device
        shape = network.shape
        self.outline = pf.datasets.Outline(LATENT, shape.side, shape.channels, shape.num_classes)

    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """W = G_m(ε), of random classes where none are given."""
        noise = torch.randn(count, LATENT, generator=generator)
        classes = self._network.shape.num_classes
        if classes and labels is None:
            labels = torch.randint(classes, (count,), generator=generator)
        conditions = labels.to(self._device) if classes and labels is not None else None
        result: Tensor = self._network.mapping(noise.to(self._device), conditions)
        return result

    def images(self, latents: Tensor) -> Tensor:
        """G_s(w)."""
        result: Tensor = self._network.synthesis(latents.to(self._device).float())
        return result


def _unreadable(error: ValueError) -> pf.UsageError:
    return pf.UsageError(
        str(error), do="train one with: protofl generator train DATASET, or leave weights out"
    )

"""`stable-diffusion`: a diffusers pipeline whose initial latent is the vector (FedKTL, App. A).

Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models", CVPR 2022. Any
pipeline that takes a prompt and ``latents`` of its denoiser's shape will do. The prompt is fixed
throughout the run, so that z_T alone decides on the image.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import protofl as pf


class StableDiffusion:
    """A diffusers pipeline, a folder or a hub name, with a fixed prompt (protofl[diffusion])."""

    argument = "model"
    sizes = pf.datasets.Outline(latent_dim=4 * 64 * 64, side=512)

    class Config(pf.Config):
        """Options."""

        model: str = pf.Field(description="a local folder, or a name on the hub")
        prompt: str = pf.Field("a cat", description="the fixed prompt")
        steps: int = pf.Field(25, ge=1, description="denoising steps")
        batch: int = pf.Field(4, ge=1, description="images that are generated together")

    @pf.hookimpl
    def outline(self, config: Config, data_dir: Path) -> pf.datasets.Outline:
        """The sizes from the folder's JSON files; those of Stable Diffusion v1.5 for a hub name."""
        _diffusers()
        folder = pf.expand_user(config.model)
        for component in ("unet", "transformer"):
            file = folder / component / "config.json"
            if file.is_file():
                sizes = _latent_shape(json.loads(file.read_text(encoding="utf-8")))
                return pf.datasets.Outline(
                    latent_dim=sizes[0] * sizes[1] * sizes[2], side=8 * sizes[1]
                )
        if folder.is_dir():
            raise pf.UsageError(
                f"{folder} holds no latent diffusion pipeline: no unet and no transformer",
                do="give the folder that save_pretrained wrote",
            )
        return self.sizes

    @pf.hookimpl
    def open_generator(
        self, config: Config, device: torch.device, data_dir: Path
    ) -> DiffusionGenerator:
        """Load the pipeline; safetensors only, so that no pickle is opened."""
        folder = pf.expand_user(config.model)
        source = str(folder) if folder.is_dir() else config.model
        try:
            pipeline = _diffusers().DiffusionPipeline.from_pretrained(
                source, use_safetensors=True, cache_dir=None if folder.is_dir() else data_dir
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise pf.UsageError(
                f"the pipeline {source} cannot be loaded: {error}",
                do="give a local folder with safetensors weights, or a name on the hub",
            ) from error
        takes = inspect.signature(pipeline.__call__).parameters
        if not {"prompt", "latents"} <= takes.keys():
            raise pf.UsageError(
                f"{type(pipeline).__name__} takes no prompt and latents",
                do="give a text-to-image latent diffusion pipeline",
            )
        return DiffusionGenerator(pipeline, config, device)


class DiffusionGenerator:
    """An opened pipeline; the vector is the flattened initial latent z_T ~ N(0, I)."""

    def __init__(
        self,
        pipeline: Any,  # noqa: ANN401 - diffusers is optional
        config: StableDiffusion.Config,
        device: torch.device,
    ) -> None:
        self._pipeline, self._config, self._device = pipeline.to(device), config, device
        pipeline.set_progress_bar_config(disable=True)
        denoiser = getattr(pipeline, "unet", None) or pipeline.transformer
        self._shape = _latent_shape(denoiser.config)
        channels, height, width = self._shape
        side = height * int(getattr(pipeline, "vae_scale_factor", 8))
        self.outline = pf.datasets.Outline(channels * height * width, side)

    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """z_T ~ N(0, I), flattened."""
        noise = torch.randn(count, self.outline.latent_dim, generator=generator)
        return noise.to(self._device)

    def images(self, latents: Tensor) -> Tensor:
        """The images of initial latents; samplers that add noise draw the same each time."""
        config, parts = self._config, []
        for z in torch.split(latents.to(self._device), config.batch):
            output = self._pipeline(
                prompt=[config.prompt] * len(z),
                latents=z.view(-1, *self._shape).to(self._pipeline.dtype),
                num_inference_steps=config.steps,
                guidance_scale=7.5,
                generator=torch.Generator().manual_seed(0),
                output_type="pt",
            )
            parts.append(output.images.float() * 2 - 1)
        return torch.cat(parts)


def _latent_shape(config: Any) -> tuple[int, int, int]:  # noqa: ANN401 - JSON, or diffusers' own
    size = config["sample_size"]
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(config["in_channels"]), int(height), int(width)


def _diffusers() -> Any:  # noqa: ANN401 - an optional dependency
    try:
        import diffusers
    except ImportError as error:
        raise pf.UsageError(
            f"generator/stable-diffusion needs diffusers, which is not installed: {error}",
            do="pip install 'protofl[diffusion]'",
        ) from error
    return diffusers

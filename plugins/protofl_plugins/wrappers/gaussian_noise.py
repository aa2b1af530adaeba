"""Gaussian noise on payloads.

FedKTL, Table 10 ("adding noise to the uploaded or downloaded vectors and images"): what travels
becomes v + p·N(0, s²), elementwise. s is the scale of the noise and p its strength.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

import protofl as pf
import torch

_VECTORS = ("prototypes", "latents", "global_prototypes")


class GaussianNoise:
    """Adds p·N(0, s²) to prototypes, latents and images on their way (FedKTL, Table 10)."""

    class Config(pf.Config):
        """Options, with the paper's symbols."""

        s: float = pf.Field(0.05, ge=0, description="s of vectors: standard deviation of the noise")
        p: float = pf.Field(0.2, ge=0, description="p of vectors: its strength; 0 adds nothing")
        s_images: float = pf.Field(0.2, ge=0, description="s of images")
        p_images: float = pf.Field(0.2, ge=0, description="p of images")
        direction: Literal["up", "down", "both"] = pf.Field(
            "both", description="which payloads: uploads, downloads, or both"
        )

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client) -> Generator[None, pf.Payload, pf.Payload]:
        """Noise on what a client sends."""
        payload = yield
        if client.config.direction == "down":
            return payload
        return _noisy(payload, client.config, client.generator("up"))

    @pf.hookimpl(wrapper=True)
    def download_payload(
        self, server: pf.Server, client_id: int
    ) -> Generator[None, pf.Payload, pf.Payload]:
        """Noise on what a client receives."""
        payload = yield
        if server.config.direction == "up":
            return payload
        return _noisy(payload, server.config, server.generator(f"down/{client_id}"))


def _noisy(
    payload: pf.Payload, config: GaussianNoise.Config, generator: torch.Generator
) -> pf.Payload:
    noisy = pf.Payload(payload)
    for key in sorted(payload):
        images = key == "images"
        if key not in _VECTORS and not images:
            continue
        strength = config.p_images * config.s_images if images else config.p * config.s
        noise = torch.randn(payload[key].shape, generator=generator)
        noisy[key] = payload[key] + strength * noise.to(payload[key])
    return noisy

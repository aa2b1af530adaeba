"""Gaussian noise on payloads: the settings of FedKTL's Table 10.

Zhang et al., CVPR 2024, Table 10, names scale s and perturbation coefficient p of FedPCL (Tan et
al., "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach", NeurIPS 2022)
and prints no formula. FedPCL's published code sends

    v·(1 − p) + ε,  ε ~ N(0, s²) elementwise

so s alone is the noise, and p is the share of the value that is taken away. The table's NC, noisy
client prototypes, is ``direction=up``; NG, noisy generated pairs, ``down``; NC + NG ``both``.

FedPCL's prototypes have length 1, and s is to be read against that: ε is s·√K long, 0.5 at K = 100
and s = 0.05. On prototypes of any other length, as most methods send them, the same s says nothing
about how much is hidden. FedKTL sends unit prototypes with ``unit=true``, which
``variant=official`` brings.

**This is not differential privacy.** Nothing bounds how long a prototype is, so no s hides a
client's influence; no ε is computed, and none adds up over the rounds. It is the noise of a table,
to see what noise costs.

The server knows the seed of a run, so it can compute the noise of uploads and subtract it. With
``secret=true`` the noise of a deployed run comes from the node's secret instead; a simulation has
no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

import protofl as pf

_VECTORS = ("prototypes", "latents", "global_prototypes")


class GaussianNoise:
    """Sends v·(1 − p) + N(0, s²) for prototypes and images v (FedKTL); no differential privacy.

    The settings are those of FedKTL's Table 10, for prototypes of length 1. Lengths are not bounded
    and no privacy budget is counted, so it gives no privacy guarantee.
    """

    draws_secretly = "secret"

    class Config(pf.Config):
        """Options, with the paper's symbols."""

        s: float = pf.Field(
            0.05,
            ge=0,
            description="s of vectors, for ones of length 1: deviation of the noise",
        )
        p: float = pf.Field(
            0.2, ge=0, le=1, description="p of vectors: the share of v taken away; 1 leaves noise"
        )
        s_images: float = pf.Field(0.2, ge=0, description="s of images")
        p_images: float = pf.Field(0.2, ge=0, le=1, description="p of images")
        direction: Literal["up", "down", "both"] = pf.Field(
            "both", description="uploads (NC), downloads (NG), or both (NC + NG)"
        )
        secret: bool = pf.Field(
            False, description="draw the noise of uploads so that the server cannot compute it"
        )

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client) -> Generator[None, pf.Payload, pf.Payload]:
        """Add noise to the upload."""
        payload = yield
        if client.config.direction == "down":
            return payload
        if client.config.secret:
            return _noisy(payload, client.config, client.secret_stream("up").normal)
        return _noisy(payload, client.config, _normal(client.generator("up")))

    @pf.hookimpl(wrapper=True)
    def download_payload(
        self, server: pf.Server, client_id: int
    ) -> Generator[None, pf.Payload, pf.Payload]:
        """Add noise to the download."""
        payload = yield
        if server.config.direction == "up":
            return payload
        return _noisy(payload, server.config, _normal(server.generator(f"down/{client_id}")))


Draw: TypeAlias = Callable[[torch.Size], Tensor]
"""Draws standard normal numbers of a shape."""


def _normal(generator: torch.Generator) -> Draw:
    return lambda shape: torch.randn(shape, generator=generator)


def _noisy(payload: pf.Payload, config: GaussianNoise.Config, draw: Draw) -> pf.Payload:
    noisy = pf.Payload(payload)
    for key in sorted(payload):
        images = key == "images"
        if key not in _VECTORS and not images:
            continue
        s, p = (config.s_images, config.p_images) if images else (config.s, config.p)
        noisy[key] = payload[key] * (1 - p) + s * draw(payload[key].shape).to(payload[key])
    return noisy

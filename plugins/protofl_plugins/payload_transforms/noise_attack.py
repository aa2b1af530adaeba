"""Noise attack: malicious clients add noise of any size.

    v′ = v + s·rms(v)·ε,  ε ~ N(0, 1) elementwise, rms(v) the root of the mean of v²

The transform ``gaussian-noise`` is another thing: there all clients hide a little of what they
send, with the figures of FedKTL's Table 10. Here s is measured in the tensor's own size, so that
one value means the same for prototypes, scores and weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.payload_transforms.attack import Attack, AttackConfig


class NoiseAttack(Attack):
    """Attack: malicious clients send v + s·rms(v)·N(0, 1); not gaussian-noise, which hides."""

    class Config(AttackConfig):
        """Options."""

        s: float = pf.Field(
            10.0, gt=0, description="s; near 0 it is honest, 1 as much noise as signal"
        )

    def forged(self, client: pf.Client[Config], name: str, tensor: Tensor) -> Tensor:
        """Noise of s times the size of the tensor."""
        noise = torch.randn(tensor.shape, generator=client.generator(name)).to(tensor)
        return tensor + client.config.s * tensor.square().mean().sqrt() * noise

"""Scaling: malicious clients send a multiple of their tensors, to outweigh the others.

    v′ = a·v

With a = M one client among M decides a mean alone: the boost of the model replacement of
Bagdasaryan et al., "How To Backdoor Federated Learning" (AISTATS 2020), without its backdoor.
Directions stay what they are, so a defence that looks at angles alone sees nothing.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl_plugins.payload_transforms.attack import Attack, AttackConfig


class Scaling(Attack):
    """Attack: malicious clients send a·v (the boost of Bagdasaryan et al., 2020)."""

    class Config(AttackConfig):
        """Options."""

        a: float = pf.Field(10.0, gt=0, description="a; 1 is honest, M outweighs M clients")

    def forged(self, client: pf.Client[Config], name: str, tensor: Tensor) -> Tensor:
        """a·v."""
        return client.config.a * tensor

"""Sign flip: malicious clients send the negative of their tensors.

    v′ = −a·v

What is flipped is what travels: prototypes, scores, whole weights. For methods that average
gradients the attack is as old as the field; Li et al., "RSA: Byzantine-Robust Stochastic
Aggregation Methods for Distributed Learning from Heterogeneous Datasets" (AAAI 2019), call it so.
Features behind a ReLU are not negative, so flipped prototypes lie where no honest one does: they
do great harm to a mean, and are easily recognised.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl_plugins.payload_transforms.attack import Attack, AttackConfig


class SignFlip(Attack):
    """Attack: malicious clients send −a·v (Li et al., 2019)."""

    class Config(AttackConfig):
        """Options."""

        a: float = pf.Field(1.0, gt=0, description="a; near 0 nothing is sent, 1 the opposite")

    def forged(self, client: pf.Client[Config], name: str, tensor: Tensor) -> Tensor:
        """−a·v."""
        return -client.config.a * tensor

"""Label flip: malicious clients train on wrong labels, and send honest payloads.

    opposite      y′ = C − 1 − y
    next          y′ = (y + 1) mod C
    permutation   y′ = π(y), π a cycle through all classes, drawn by the seed, one for all

Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems" (ESORICS 2020).
Whoever trains on them sends counts and prototypes of the labels that it has, not of the true ones.
``opposite`` leaves the middle one of an odd number of classes what it is. Test labels stay true.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import protofl as pf


class LabelFlip:
    """Attack: malicious clients train on flipped labels (Tolpegin et al., 2020)."""

    attack = True

    class Config(pf.Config):
        """Options."""

        to: Literal["opposite", "next", "permutation"] = pf.Field(
            "opposite", description="C − 1 − y, the next class, or one drawn for each class"
        )

    @pf.hookimpl
    def train_labels(self, client: pf.Client[Config], labels: Tensor) -> Tensor:
        """y′."""
        if not client.malicious:
            return labels
        C = client.num_classes
        if client.config.to == "opposite":
            return C - 1 - labels
        if client.config.to == "next":
            return (labels + 1) % C
        order = torch.randperm(C, generator=client.shared_generator("cycle"))
        cycle = torch.empty_like(order).scatter(0, order, order.roll(-1))
        return cycle.to(labels.device)[labels]

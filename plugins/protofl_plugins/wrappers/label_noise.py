"""Label noise: some training labels are wrong, as of a careless annotator; test labels stay true.

    symmetric    y′ is one of the C − 1 other classes, all alike
    pairs        y′ = (y + 1) mod C

each with probability ``rate`` for every training sample of a noisy client, drawn once by the seed.
Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels"
(NeurIPS 2018, https://arxiv.org/abs/1804.06872), Sec. 4; a client is noisy with probability
``clients``, as in FedCorr (Xu et al., CVPR 2022, https://arxiv.org/abs/2204.04677), Sec. 3.1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import protofl as pf


class LabelNoise:
    """Wrong training labels of all or some clients: symmetric, or of neighbouring classes."""

    class Config(pf.Config):
        """Options."""

        kind: Literal["symmetric", "pairs"] = pf.Field(
            "symmetric", description="any other class, or the next one"
        )
        rate: float = pf.Field(
            0.2, ge=0, le=1, description="probability that a label is wrong; 0 changes nothing"
        )
        clients: float = pf.Field(
            1.0, ge=0, le=1, description="probability that a client has wrong labels; 1: all have"
        )

    @pf.hookimpl
    def train_labels(self, client: pf.Client[Config], labels: Tensor) -> Tensor:
        """y′."""
        config, C = client.config, client.num_classes
        draws = client.generator("labels")
        noisy = torch.rand((), generator=draws) < config.clients
        wrong = (torch.rand(len(labels), generator=draws) < config.rate) & noisy
        steps = torch.ones(len(labels), dtype=torch.int64)
        if config.kind == "symmetric":
            steps = torch.randint(1, C, (len(labels),), generator=draws)
        return (labels + (steps * wrong).to(labels.device)) % C

"""Label noise: some training labels are wrong, as of a careless annotator; test labels stay true.

    symmetric    y′ is one of the C − 1 other classes, all alike
    pairs        y′ = (y + 1) mod C

    uniform      y′ is one of all C classes, all alike, so rate·(C − 1)/C of the labels are wrong

each with probability ``rate`` for every training sample of a noisy client, drawn once by the seed.
Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels"
(NeurIPS 2018, https://arxiv.org/abs/1804.06872), Sec. 4.

FedCorr (Xu et al., CVPR 2022, https://arxiv.org/abs/2204.04677), Sec. 3.1: a client is noisy with
probability ρ (``clients``), and each noisy client draws its rate from U(τ, 1) (``tau``). Its code
(github.com/Xu-Jingyi/FedCorr) draws y′ among all classes: ``kind=uniform``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import protofl as pf


class LabelNoise:
    """Wrong training labels of all or some clients: of any other, the next, or any class."""

    class Config(pf.Config):
        """Options."""

        kind: Literal["symmetric", "pairs", "uniform"] = pf.Field(
            "symmetric",
            description="any other class, the next one, or one of all classes, the true one too, "
            "as in FedCorr's code",
        )
        rate: float = pf.Field(
            0.2, ge=0, le=1, description="probability that a label is changed; 0 changes nothing"
        )
        tau: float | None = pf.Field(
            None,
            ge=0,
            le=1,
            description="τ: each noisy client draws its own rate from U(τ, 1), as in FedCorr. "
            "None: all have rate",
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
        rate = config.rate
        if config.tau is not None:  # from a generator of its own, so that it changes no other draw
            draw = torch.rand((), generator=client.generator("rate"))
            rate = config.tau + (1 - config.tau) * float(draw)
        wrong = (torch.rand(len(labels), generator=draws) < rate) & noisy
        steps = torch.ones(len(labels), dtype=torch.int64)
        if config.kind != "pairs":
            least = 1 if config.kind == "symmetric" else 0
            steps = torch.randint(least, C, (len(labels),), generator=draws)
        return (labels + (steps * wrong).to(labels.device)) % C

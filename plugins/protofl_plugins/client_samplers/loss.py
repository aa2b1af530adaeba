"""Client sampling by loss: Power-of-Choice.

Source: Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning",
AISTATS 2022 (arXiv 2010.01243, "Power-of-Choice Selection Strategies"), in the variant rpow-d that
costs no communication of its own: d clients are drawn without putting back, with probability
p_k = n_k / n, and the m of them with the largest known losses are asked. What is known of a client
is its mean loss over the local steps of its last training, which comes with its upload; a client
that never sent any is asked first.

=====  ====================================================
d      candidates, ``candidates``·m rounded, at least m
m      clients that are asked
n_k    client k's training samples
=====  ====================================================

The loss is that of all terms of a method as they are weighted in training. It is one number a
client, not counted in the traffic, and recorded as ``client_losses``.
"""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.client_samplers.size import draw_by_size


class Loss:
    """The clients with the largest known losses, among some drawn by size."""

    reads_sizes = True

    class Config(pf.Config):
        """Options: --set sampling.OPTION=VALUE."""

        candidates: float = pf.Field(
            2.0,
            ge=1,
            le=1e9,
            description="d/m: 1 regresses to size, large always asks those with the largest losses",
        )

    @pf.hookimpl
    def select(
        self,
        clients: np.ndarray,
        count: int,
        sizes: np.ndarray,
        losses: np.ndarray,
        generator: np.random.Generator,
        config: Config,
    ) -> list[int]:
        """Draw the candidates; those without a known loss come first, then by loss."""
        num_candidates = min(len(clients), round(config.candidates * count))
        drawn = draw_by_size(clients, sizes, num_candidates, generator)
        known = np.where(np.isnan(losses[drawn]), np.inf, losses[drawn])
        chosen: list[int] = drawn[np.argsort(-known, kind="stable")[:count]].tolist()
        return chosen

"""Client sampling by size: clients with more training samples are drawn more often.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2
(FedProx): device k is chosen with probability p_k = n_k / n. There devices are averaged with equal
weights then; here methods weigh as they always do, so large clients count twice over.

=====  ===============================================
p_k    client k's chance in the first draw, n_k^a / Σ n^a
n_k    its training samples
a      ``power``: 0 regresses to ``uniform``
=====  ===============================================
"""

from __future__ import annotations

import numpy as np

import protofl as pf


def draw_by_size(
    clients: np.ndarray,
    sizes: np.ndarray,
    count: int,
    power: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draw clients without putting back, in proportion to a power of their sizes.

    Args:
        clients: Those who can be drawn.
        sizes: Training samples [M] of every client; each has one at least.
        count: How many, at most as many as there are in ``clients``.
        power: The power a.
        generator: The source of randomness.

    Returns:
        Their numbers, in the order of the draws.
    """
    weights = (sizes[clients] / sizes[clients].max()) ** power
    # Exponential races: the k-th smallest is the k-th draw without putting back (Efraimidis and
    # Spirakis 2006); unlike Generator.choice they take weights that round to 0.
    with np.errstate(divide="ignore"):
        races = generator.standard_exponential(len(clients)) / weights
    return clients[np.argsort(races, kind="stable")[:count]]


class Size:
    """Client sampling by size: clients with more training samples are drawn more often."""

    reads_sizes = True

    class Config(pf.Config):
        """Options: --set sampling.OPTION=VALUE."""

        power: float = pf.Field(
            1.0,
            ge=0,
            le=100,
            description="a: chances go with n^a; 0 regresses to uniform, large asks the largest",
        )

    @pf.hookimpl
    def select(
        self,
        clients: np.ndarray,
        count: int,
        sizes: np.ndarray,
        generator: np.random.Generator,
        config: Config,
    ) -> list[int]:
        """Draw in proportion to n^a."""
        chosen: list[int] = draw_by_size(clients, sizes, count, config.power, generator).tolist()
        return chosen

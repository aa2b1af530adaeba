"""Client sampling by size: clients with more training samples are drawn more often.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2
(FedProx): device k is chosen with probability p_k = n_k / n. There devices are averaged with equal
weights then; here methods weigh as they always do, so large clients count twice over.

=====  ===============================================
p_k    client k's chance in the first draw, n_k / Σ n
n_k    its training samples
=====  ===============================================
"""

from __future__ import annotations

import numpy as np

import protofl as pf


def draw_by_size(
    clients: np.ndarray, sizes: np.ndarray, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw clients without putting back, in proportion to their sizes.

    Args:
        clients: Those who can be drawn.
        sizes: Training samples [M] of every client; each has one at least.
        count: How many, at most as many as there are in ``clients``.
        generator: The source of randomness.

    Returns:
        Their numbers, in the order of the draws.
    """
    weights = sizes[clients] / sizes[clients].max()
    # Exponential races: the k-th smallest is the k-th draw without putting back (Efraimidis and
    # Spirakis 2006).
    races = generator.standard_exponential(len(clients)) / weights
    return clients[np.argsort(races, kind="stable")[:count]]


class Size:
    """Client sampling by size: clients with more training samples are drawn more often."""

    reads_sizes = True

    class Config(pf.Config):
        """No options."""

    @pf.hookimpl
    def select(
        self, clients: np.ndarray, count: int, sizes: np.ndarray, generator: np.random.Generator
    ) -> list[int]:
        """Draw in proportion to n."""
        chosen: list[int] = draw_by_size(clients, sizes, count, generator).tolist()
        return chosen

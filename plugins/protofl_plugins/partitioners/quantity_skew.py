"""Quantity skew: clients of different size with the same mixture of classes.

Source: NIID-Bench (Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study",
ICDE 2022, https://arxiv.org/abs/2102.02079), Sec. IV-D: q ~ Dir(β) over the clients, and client i
gets the share q_i of all samples. NIID-Bench draws until the smallest client has 10 samples; here
small clients get samples of the largest.
"""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.dirichlet import move_to_small
from protofl_plugins.partitioners.requirements import MIN_SAMPLES, check_samples


class QuantitySkew:
    """Clients of different size, by a Dirichlet distribution; classes mixed alike."""

    class Config(pf.Config):
        """Options of the quantity-skew partitioner."""

        beta: float = pf.Field(
            0.5,
            gt=0,
            le=1e9,
            description="β, concentration: towards 0 one client has nearly all, large is equal",
        )
        min_samples: int | None = MIN_SAMPLES

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_clients: int,
        min_samples: int,
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Draw q, and cut one random permutation of all rows by it."""
        check_samples("quantity-skew", len(labels), num_clients, min_samples)
        q = generator.dirichlet(np.full(num_clients, config.beta))
        # Dirichlet draws of a tiny β underflow to NaN: one client has all.
        q = q if np.isfinite(q).all() else np.eye(num_clients)[generator.integers(num_clients)]
        ends = np.floor(np.cumsum(q)[:-1] * len(labels)).astype(np.int64)
        owner = np.empty(len(labels), dtype=np.int64)
        rows = generator.permutation(len(labels))
        owner[rows] = np.searchsorted(ends, np.arange(len(labels)), side="right")
        lacking = np.maximum(min_samples - np.bincount(owner, minlength=num_clients), 0).sum()
        if lacking:
            receivers = move_to_small(owner, num_clients, min_samples, generator)
            notes.append(
                f"quantity-skew: moved {lacking} samples from the largest clients to {receivers} "
                f"that had fewer than {min_samples}"
            )
        sizes = np.bincount(owner, minlength=num_clients)
        notes.append(f"quantity-skew: clients have {sizes.min()} to {sizes.max()} samples")
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])

"""Quantity skew: clients differ in their number of samples, not in their mixture of classes.

Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, "Quantity
skew": q ~ Dir(β) over clients, and client i gets a share q_i of the data, regardless of the labels.
Here, every client first gets the minimum number of samples, and q divides the rest.
"""

from __future__ import annotations

import numpy as np

import protofl as pf


class Quantity:
    """Shares of the data drawn from Dir(β), regardless of the labels (Li et al., 2022)."""

    class Config(pf.Config):
        """Options."""

        beta: float = pf.Field(0.5, gt=0, description="β of Dir(β); small: a few have nearly all")

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_clients: int,
        min_samples: int,
        generator: np.random.Generator,
        config: Config,
    ) -> list[np.ndarray]:
        """Cut one random permutation of all rows into pieces of the drawn sizes."""
        spare = len(labels) - num_clients * min_samples
        if spare < 0:
            raise pf.UsageError(
                f"quantity: {len(labels)} samples are too few for {num_clients} clients with at "
                f"least {min_samples} each",
                do=f"use at most {len(labels) // min_samples} clients, or more samples",
            )
        shares = generator.dirichlet(np.full(num_clients, config.beta))
        ends = np.floor(np.cumsum(shares) * spare).astype(np.int64)[:-1]
        cuts = ends + min_samples * np.arange(1, num_clients)
        rows = generator.permutation(len(labels)).astype(np.int64)
        return list(np.split(rows, cuts))

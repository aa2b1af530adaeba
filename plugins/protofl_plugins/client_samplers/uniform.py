"""Uniform client sampling, as in FedAvg.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1: S_t is a random set of m = max(C·K, 1) clients.
"""

from __future__ import annotations

import numpy as np

import protofl as pf


class Uniform:
    """Uniform client sampling."""

    class Config(pf.Config):
        """No options."""

    @pf.hookimpl
    def select(self, clients: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
        """Draw without putting back."""
        chosen: list[int] = generator.choice(clients, count, replace=False).tolist()
        return chosen

"""Equal random parts: every client's labels follow the whole data set's distribution."""

from __future__ import annotations

import numpy as np

import protofl as pf


class IID:
    """Equal random parts; sizes differ by at most one sample."""

    class Config(pf.Config):
        """No options."""

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_classes: int,
        num_clients: int,
        min_samples: int,
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Cut one random permutation of all rows into equal pieces."""
        if len(labels) < num_clients * min_samples:
            raise pf.UsageError(
                f"iid: {len(labels)} samples are too few for {num_clients} clients "
                f"with at least {min_samples} each",
                do=f"use at most {len(labels) // min_samples} clients, or a smaller batch size",
            )
        rows = generator.permutation(len(labels)).astype(np.int64)
        return np.array_split(rows, num_clients)

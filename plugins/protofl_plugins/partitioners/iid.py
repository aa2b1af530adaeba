"""Equal random parts: every client's labels follow the whole data set's distribution."""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.requirements import check_samples


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
        check_samples("iid", len(labels), num_clients, min_samples, "more samples")
        rows = generator.permutation(len(labels)).astype(np.int64)
        return np.array_split(rows, num_clients)

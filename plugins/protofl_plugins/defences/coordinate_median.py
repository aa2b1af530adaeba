"""Coordinate-wise median of the clients' prototypes.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018),
Definition 1, class by class over the clients that have the class:

    P̄^c_k = med{ P_i^c,k : i in N_c }

Of an even number of values it is the mean of the two in the middle.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.defences.prototype_uploads import (
    DefenceConfig,
    ascending,
    mean_of_rows,
    of_known_classes,
    stacked,
    with_means,
)


class CoordinateMedian:
    """Defence: the median of every number of a class's prototypes (Yin et al., 2018)."""

    donates = ("server_aggregate",)

    class Config(DefenceConfig):
        """Options; shared: absent."""

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Replace each prototype by the median of its class."""
        rows, present = stacked(server, uploads)
        return with_means(uploads, coordinate_median(rows, present))

    server_aggregate = staticmethod(mean_of_rows)


def coordinate_median(prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the median of every coordinate (Definition 1), 0 for classes that no client has.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.

    Returns:
        [C, K].
    """
    values, counts = ascending(prototypes, present)
    last = (counts - 1).clamp(min=0)
    places = torch.stack([last // 2, (last + 1) // 2])
    middle = values.gather(0, places.unsqueeze(2).expand(-1, -1, values.shape[2]))
    return of_known_classes(middle.mean(0), counts)

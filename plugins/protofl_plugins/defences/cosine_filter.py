"""Cosine filter on the clients' prototypes.

    kept: P_i^c with cos(P_i^c, med^c) ≥ least,  med^c the coordinate-wise median of class c

Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping" (NDSS 2021),
score updates by their cosine to one of the server's own data, and negative ones with 0: hence
``least=0``. A server without data has the median in its place. The one with the largest cosine is
always kept. Lengths are not looked at: what is only scaled passes. Honest prototypes of unlike
models need not be alike in the first rounds, and are then left out, the more the larger ``least``
is.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.defences.coordinate_median import coordinate_median
from protofl_plugins.defences.prototype_uploads import (
    DefenceConfig,
    mean_of_rows,
    stacked,
    without_rows,
)


class CosineFilter:
    """Defence: leaves out prototypes that point away from the median (after Cao et al., 2021)."""

    donates = ("server_aggregate",)

    class Config(DefenceConfig):
        """Options; shared: absent."""

        least: float = pf.Field(
            0.0, ge=-1, le=1, description="the smallest cosine that is kept; −1 keeps all, 1 one"
        )

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Remove the prototypes that point away from the median."""
        rows, present = stacked(server, uploads)
        return without_rows(uploads, cosine_filter(rows, present, server.config.least))

    server_aggregate = staticmethod(mean_of_rows)


def cosine_filter(prototypes: Tensor, present: Tensor, least: float) -> Tensor:
    """Return the rows of every class whose angle to the class's median is small, [M, C] bool.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        least: The smallest cosine, −1…1; −1 keeps all.
    """
    median = coordinate_median(prototypes, present)
    rows = prototypes.masked_fill(~present.unsqueeze(2), 0.0)
    cosine = torch.cosine_similarity(rows, median.unsqueeze(0), dim=2)
    cosine = cosine.masked_fill(~present, -torch.inf)
    return ((cosine >= least) | (cosine == cosine.amax(0))) & present

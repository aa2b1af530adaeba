"""Trimmed mean of the clients' prototypes.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018),
Definition 2, class by class: of every number the f_c smallest and the f_c largest values are left
out, and the mean of the others is taken. f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋) of the n_c clients
that have the class: with one or two nothing can be cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.defences.prototype_uploads import (
    DefenceConfig,
    ascending,
    mean_of_rows,
    minority,
    of_known_classes,
    stacked,
    with_means,
)


class TrimmedMean:
    """Defence: a class's mean without the largest and smallest values (Yin et al., 2018)."""

    donates = ("server_aggregate",)

    class Config(DefenceConfig):
        """Options; shared: absent."""

        share: float = pf.Field(
            0.2,
            ge=0,
            le=0.5,
            description="share of a class's clients expected to be malicious; 0 is the mean, 0.5 "
            "nearly the median",
        )

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Replace each prototype by the trimmed mean of its class."""
        rows, present = stacked(server, uploads)
        return with_means(uploads, trimmed_mean(rows, present, server.config.share))

    server_aggregate = staticmethod(mean_of_rows)


def trimmed_mean(prototypes: Tensor, present: Tensor, share: float) -> Tensor:
    """Return the mean of every coordinate without its f_c smallest and f_c largest values.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        share: Share of clients that is expected to be malicious; 0 is the mean.

    Returns:
        [C, K], 0 for classes that no client has.
    """
    values, counts = ascending(prototypes, present)
    cut = minority(counts, share)
    place = torch.arange(len(values), device=values.device).unsqueeze(1)
    inside = ((place >= cut) & (place < counts - cut)).unsqueeze(2)
    sums = values.masked_fill(~inside, 0.0).sum(0)
    return of_known_classes(sums / (counts - 2 * cut).clamp(min=1).unsqueeze(1), counts)

"""Multi-Krum on the clients' prototypes.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NeurIPS
2017), class by class over the n_c clients that have the class: the score of a prototype is the sum
of its squared distances to its n_c − f_c − 2 nearest others, and the n_c − f_c with the smallest
scores are kept, and averaged. f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋). The paper's guarantee asks for
n_c > 2·f_c + 2, which a class that few clients have does not meet; there at least one neighbour
counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.defences.prototype_uploads import (
    DefenceConfig,
    mean_of_rows,
    minority,
    stacked,
    without_rows,
)


class MultiKrum:
    """Defence: leaves out prototypes that are far from most others (Blanchard et al., 2017)."""

    donates = ("server_aggregate",)

    class Config(DefenceConfig):
        """Options; shared: absent."""

        share: float = pf.Field(
            0.2,
            ge=0,
            le=0.5,
            description="share of a class's clients expected to be malicious, which are left out; "
            "0 keeps all",
        )

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Remove the prototypes with the largest scores."""
        rows, present = stacked(server, uploads)
        return without_rows(uploads, multi_krum(rows, present, server.config.share))

    server_aggregate = staticmethod(mean_of_rows)


def multi_krum(prototypes: Tensor, present: Tensor, share: float) -> Tensor:
    """Return the rows of every class that Multi-Krum keeps, [M, C] bool.

    Of equal scores those of earlier clients are kept.

    Args:
        prototypes: [M, C, K].
        present: [M, C] bool.
        share: Share of clients that is expected to be malicious; 0 keeps all.
    """
    device, prototypes = prototypes.device, pf.functional.in_float64(prototypes)
    present = present.to(prototypes.device)
    counts = present.sum(0)
    hostile = minority(counts, share)
    rows = prototypes.masked_fill(~present.unsqueeze(2), 0.0).transpose(0, 1)
    squared = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    there = present.T
    pairs = there.unsqueeze(1) & there.unsqueeze(2)
    itself = torch.eye(len(prototypes), dtype=torch.bool, device=rows.device)
    nearest = squared.masked_fill(~pairs | itself, torch.inf).sort(dim=2).values  # [C, M, M]
    neighbours = (counts - hostile - 2).clamp(min=1).minimum(counts - 1)
    place = torch.arange(len(prototypes), device=rows.device)
    taken = (place < neighbours.unsqueeze(1)).unsqueeze(1)
    scores = nearest.masked_fill(~taken, 0.0).sum(2).clamp(max=torch.finfo(nearest.dtype).max)
    scores = scores.masked_fill(~there, torch.inf)
    rank = scores.argsort(dim=1, stable=True).argsort(dim=1)
    return ((rank < (counts - hostile).unsqueeze(1)) & there).T.to(device)

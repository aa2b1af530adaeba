"""Distances of the clients' prototypes to the server's."""

from __future__ import annotations

import torch
from torch import Tensor


def distances_by_client(
    prototypes: Tensor, known: Tensor, centres: Tensor, centres_known: Tensor
) -> Tensor:
    """Return, by client, the mean Euclidean distance of its prototypes to the global ones.

    φ(P_i^c, P̂^c) of FedTGP Eq. 11 and d of FedSA Eq. 5, averaged over the classes that both have.

    Args:
        prototypes: [M, C, K]; unknown rows are not looked at.
        known: [M, C] bool, the classes that each client has.
        centres: [C, K], global prototypes or anchors.
        centres_known: [C] bool.

    Returns:
        [M], in the unit of the prototypes; NaN for a client without such a class.
    """
    both = known & centres_known
    apart = (prototypes - centres).masked_fill(~both.unsqueeze(2), 0.0)
    sums = torch.linalg.vector_norm(apart, dim=2).sum(1)
    return torch.where(both.any(1), sums / both.sum(1).clamp_min(1), torch.nan)

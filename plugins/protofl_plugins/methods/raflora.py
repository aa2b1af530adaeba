"""raFLoRA: each slice of rank is averaged over the clients that have it.

Wu et al., "Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity",
2026 (arXiv 2602.13486); after its abstract and summaries.

    local     as FlexLoRA
    server    ΔW ← Σ_k Σ_{i: r_i ≥ k} p_i/(Σ_{j: r_j ≥ k} p_j)·s_i·B_i[:, k]·A_i[k]
              ΔW = U·Σ·V
    down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

FlexLoRA's weights p_i of a slice sum to less than 1 where few clients have it, and the energy of ΔW
ends in the smallest rank ("rank collapse"). The paper partitions slices by the ranks that occur,
which gives the same weights. Σ goes into B, as published for FlexLoRA, whose s_i = 16/r_i is
``alpha=16``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.adapters import AdapterConfig, Adapters, fresh
from protofl_plugins.low_rank import Factors, best_of_rank, stack


class RaFLoRA(Adapters):
    """Adapters averaged over the clients that have a slice of rank (Wu et al., 2026)."""

    Config = AdapterConfig

    def combine(
        self, server: pf.Server[AdapterConfig], name: str, factors: Sequence[Factors], p: Tensor
    ) -> Factors:
        """The SVD of the sum over slices (Eq. 8)."""
        largest = max(f.rank for f in factors)
        present = torch.tensor([f.rank for f in factors], device=p.device)
        has = torch.arange(largest, device=p.device) < present.unsqueeze(1)  # M × k
        share = has * p.unsqueeze(1)
        share = share / share.sum(0)
        each = [row[: f.rank] for row, f in zip(share, factors, strict=True)]
        return best_of_rank(stack(factors, each), fresh(server, name).to(p))

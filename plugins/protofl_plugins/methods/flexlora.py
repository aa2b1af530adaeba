"""FlexLoRA: adapters of different ranks are averaged as products and cut by an SVD.

Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources", NeurIPS 2024 (arXiv 2402.11505).

    local     B_i, A_i of rank r_i: min over them of ℓ(W + s_i·B_i·A_i), starting from the download
    server    ΔW ← Σ_i p_i·s_i·B_i·A_i,  p_i = n_i/n;   ΔW = U·Σ·V
    down      B = U[:, :r_i]·Σ[:r_i]/s_i,  A = V[:r_i]

The SVD is that of the stacked factors (`protofl_plugins.low_rank`), so no ΔW is made. Where ΔW has
fewer singular values than the largest rank, the further slices have a fresh A and B = 0, as at
first. Σ goes into B, as in the published code, whose s_i = α/r_i with α = 16: ``alpha=16``. By
default s_i is one number, ``scale``, for all ranks. Inference: the client's net after its download.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

import protofl as pf
from protofl_plugins.adapters import AdapterConfig, Adapters, fresh
from protofl_plugins.low_rank import Factors, best_of_rank, stack


class FlexLoRA(Adapters):
    """Adapters of different ranks, averaged as products (Bai et al., 2024)."""

    Config = AdapterConfig

    def combine(
        self, server: pf.Server[AdapterConfig], name: str, factors: Sequence[Factors], p: Tensor
    ) -> Factors:
        """The SVD of Σ_i p_i·s_i·B_i·A_i."""
        return best_of_rank(stack(factors, [*p]), fresh(server, name).to(p))

"""LG-FedAvg: clients share the head and keep their feature extractors.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020; as in FedTGP, section "Baseline methods": the last layer h is shared.

    local     min over f_i, h_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y), h_i starting from h
    server    h ← Σ_i (n_i / n) · h_i

In round 0 nothing has been averaged yet and nothing is sent down. Inference is by the head.
"""

from __future__ import annotations

import protofl as pf

from protofl_plugins.heads import needs_one_head
from protofl_plugins.sharing import SharedWeights, SharingConfig


class LGFedAvg(SharedWeights):
    """Clients share the head and keep their own feature extractors (Liang et al., 2020)."""

    Config = SharingConfig
    part = "head"
    uploads = {
        "head/…": "the classifier after local training; its bias hints at the class shares",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"head/…": "the average of the clients' heads"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Heads of one shape."""
        return needs_one_head(run, "averages heads")

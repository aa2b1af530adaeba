"""FedAvg: clients share one model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017; FedPKD Eq. 1.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w
    server    w ← Σ_i (n_i / n) · w_i

The server builds w, so that it is sent from round 0. Inference is by the shared model.
"""

from __future__ import annotations

from protofl_plugins.weight_sharing import ModelSharingConfig, SharedModel


class FedAvg(SharedModel):
    """Clients share one model, averaged by the server (McMahan et al., 2017)."""

    Config = ModelSharingConfig

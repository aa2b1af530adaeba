"""FedRolex: clients train a window of one net's channels that rolls by one each round.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022 (arXiv 2212.01548).

    W_i^t    ⌈r_i·n⌉ of the n channels of each layer of W, from channel (−t) mod n on, round the end
    W        each number: its mean over the clients that have it; without any it stays

As HeteroFL otherwise, mask and evaluation included. Inference: the client's part of this round.

The window is that of the published code; the paper's text was not at hand to check its direction.
"""

from __future__ import annotations

from types import MappingProxyType

from protofl_plugins.submodels import SharedSubmodel, SubmodelConfig


class FedRolex(SharedSubmodel):
    """Clients train a window of one net's channels that rolls each round (Alam et al., 2022)."""

    Config = SubmodelConfig
    window = "rolling"
    sgd = MappingProxyType({"momentum": 0.9, "weight_decay": 1e-3})
    ablations = {
        "scored without the mask": "--set mask=loss",
        "without masked cross-entropy": "--set mask=none",
    }

"""FedAvg: clients share one model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017; FedPKD Eq. 1.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w
    server    w ← Σ_i (n_i / n) · w_i

The server builds w, so that it is sent from round 0. Inference is by the shared model.
"""

from __future__ import annotations

from typing import Literal

import protofl as pf

from protofl_plugins.sharing import SharedWeights, SharingConfig, needs_one_architecture


class FedAvg(SharedWeights):
    """Clients share one model, averaged by the server (McMahan et al., 2017)."""

    class Config(SharingConfig):
        """Options."""

        buffers: Literal["average", "local"] = pf.Field(
            "average", description="average BatchNorm statistics too, or keep them on the client"
        )

    uploads = {
        "model/…": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/…": "the average of the clients' models"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """One architecture."""
        return needs_one_architecture(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """w, as the server builds it."""
        buffers = server.config.buffers == "average"
        model = server.build(server.clients[0].architecture)
        return pf.pack_weights(model, "model", buffers=buffers)

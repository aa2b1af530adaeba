"""FedDyn: a regulariser that changes with each round aligns the clients' optima.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv 2111.04263),
algorithm 1.

    local     θ_k ← argmin_θ L_k(θ) − ⟨g_k, θ⟩ + α/2·‖θ − θ^{t−1}‖², by steps from θ^{t−1}
    gradient  g_k ← g_k − α·(θ_k − θ^{t−1}), which is ∇L_k(θ_k) at the argmin; 0 at first
    server    h ← h − α·1/m·Σ_{k∈P} (θ_k − θ^{t−1}),  θ^t ← 1/|P|·Σ_{k∈P} θ_k − 1/α·h

L_k is the client's mean cross-entropy, θ^{t−1} the model that the client received. P are the
clients of the round, m is the number of all clients that can take part. g_k stays on the client, h
on the server, which starts at 0. BatchNorm statistics are averaged without h. Inference is by the
shared model θ^t.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.shared import weights


class FedDyn:
    """A regulariser that changes with each round aligns the clients' optima (Acar et al., 2021)."""

    class Config(weights.ModelSharingConfig, weights.ScopeConfig):
        """Options, with the paper's symbols; shared: scope, buffers."""

        alpha: float = pf.Field(
            0.01,
            gt=0,
            description="α; small values need many local steps and make h/α large, large values "
            "keep clients at θ^{t−1}. The paper tunes 0.1, 0.01 and 0.001",
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1/|P| of the average of θ_k, or n_k/n"
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    asynchronous = "versions"
    terms = {
        "ce": "L_k, cross-entropy",
        "dyn": "−⟨g_k, θ⟩ + α/2·‖θ − θ^{t−1}‖²; can be negative",
    }
    uploads = weights.UPLOADS
    downloads = {"model/*": "θ^t, the average of the clients' models, corrected by h"}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # θ⁰
    download_payload = weights.MODEL.download_payload  # θ^{t−1}
    receive = weights.MODEL.receive  # θ_k ← θ^{t−1}

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Keep θ^{t−1} as it was received, and g_k."""
        start = client.scratch["start"] = weights.flat(client.parameters()).detach()
        return {"start": start, "g": client.state.get("g", torch.zeros_like(start))}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_k and the regulariser."""
        theta = weights.flat(client.parameters())
        squared = (theta - constants["start"]).square().sum()
        return {
            "ce": client.task.loss(output.logits, batch.y),
            "dyn": client.config.alpha / 2 * squared - (constants["g"] * theta).sum(),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Update g_k."""
        moved = weights.flat(client.parameters()).detach() - client.scratch["start"]
        client.state["g"] = client.state.get("g", 0) - client.config.alpha * moved

    upload_payload = weights.MODEL.upload_payload  # θ_k and n_k

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Update h, and average θ_k and correct the average by h."""
        result, alpha = weights.MODEL.server_aggregate(server, uploads), server.config.alpha
        h: dict[str, Tensor] = server.state.setdefault("h", {})
        everyone = weights.sharing(server, range(server.num_clients))
        for end, clients in weights.sharing(server, uploads).items():
            m, part = len(everyone[end]), f"model{end}/"
            for key in (key for key in result if key.startswith(part) and "/buffer/" not in key):
                sent = [uploads[k][key.replace(part, "model/", 1)] for k in clients]
                moved = torch.stack(sent).sum(0) - len(sent) * server.global_state[key]
                h[key] = h.get(key, torch.zeros_like(moved)) - alpha / m * moved
                result[key] = result[key] - h[key] / alpha
        return result

    global_models = weights.MODEL.global_models

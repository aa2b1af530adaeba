"""FedSAM: clients step by the gradient at the worst weights nearby (sharpness-aware minimisation).

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022
(arXiv 2206.02618), Algorithm 1. On a mini-batch, with the client's loss ℓ and weights w_i:

    g       ∇ℓ(w_i)
    w̃_i     w_i + ρ·g/‖g‖
    step    w_i ← w_i − η·∇ℓ(w̃_i)
    server  w ← the plain mean of the w_i of the round's clients

``local_loss`` returns ℓ(w̃_i) with g as a constant, so the gradient by w_i is ∇ℓ(w̃_i), and the
run's optimiser makes the step. BatchNorm's statistics see both passes.
"""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import protofl as pf


class FedSAM:
    """Clients step by the gradient at the worst weights nearby (Qu et al., 2022)."""

    class Config(pf.Config):
        """Options, with the paper's symbols."""

        rho: float = pf.Field(
            0.05,
            ge=0,
            description="ρ, distance of w̃_i; 0 is FedAvg, large values leave the minimum",
        )

    terms = {"ce": "cross-entropy at w̃_i"}
    uploads = {"model/*": pf.Key("as the parameter", "w_i; gradients can be inverted from it")}
    downloads = {"model/*": pf.Key("as the parameter", "w")}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one architecture for all clients."""
        return [] if run.homogeneous else ["w is averaged: one architecture, --models cnn4"]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build the w that all clients start from."""
        return pf.models.pack_weights(server.build(server.clients[0].architecture), "model")

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """Send w."""
        return server.global_state.select("model/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w: w_i ← w."""
        pf.models.load_weights(client.module("model"), client.received, "model")

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """Return ℓ(w̃_i), whose gradient by w_i is ∇ℓ(w̃_i), as g is a constant."""
        model = client.module("model")
        w = {name: p for name, p in model.named_parameters() if p.requires_grad}
        loss = cross_entropy(output.logits, batch.y)
        g = torch.autograd.grad(loss, [*w.values()], retain_graph=True)
        norm = torch.cat([each.flatten() for each in g]).norm()
        distance = client.config.rho / (norm + 1e-12)
        nearby = {name: p + distance * each for (name, p), each in zip(w.items(), g, strict=True)}
        return {"ce": cross_entropy(functional_call(model, nearby, (batch.x,)), batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send w_i."""
        return pf.models.pack_weights(client.module("model"), "model")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Return the plain mean of the w_i."""
        return pf.models.average_weights([*uploads.values()], "model")

"""FedGH: one head for all, trained by the server on the clients' prototypes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia
2023 (arXiv:2303.13137); the server's learning rate as in FedKTL (Zhang et al., CVPR 2024).

    local     min over f_i, h_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y), h_i starting from h
    P_i^c     client i's prototype of class c: mean feature of its samples
    server    h ← h − η_S·∇ℓ(h(P_i^c), c), over all (i, c) that were sent

The server's head persists from round to round. Before its first training nothing is sent down.
Inference is by the head, after h has taken its place.
"""

from __future__ import annotations

import protofl as pf
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protofl_plugins.heads import needs_one_head
from protofl_plugins.prototyping import SendsPrototypes, sent_rows


class FedGH(SendsPrototypes):
    """The server trains one head for all on the clients' prototypes (Yi et al., 2023)."""

    class Config(pf.Config):
        """Options."""

        eta_s: float = pf.Field(0.01, gt=0, description="η_S, the server's learning rate")
        epochs: int = pf.Field(
            1,
            ge=0,
            description="passes of the server over the prototypes; 0 sends an untrained head, many "
            "fit it to the prototypes. Value ours",
        )

    terms = {"ce": "cross-entropy"}
    downloads = {"head/…": "h, trained on the prototypes of the round's clients"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Heads of one shape."""
        return needs_one_head(run, "gives all clients one head")

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> None:
        """The head h before any training."""
        server.modules["head"] = server.build(server.clients[0].architecture).head

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """h, once it has been trained."""
        return server.knowledge.select("head/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Replace the client's head by h."""
        if client.received.under("head"):
            pf.load_weights(client.module("head"), client.received, "head")

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """SGD on the received pairs (P_i^c, c), in mini-batches of the clients' size."""
        prototypes, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        head = server.modules["head"]
        weights: list[Tensor] = list(head.parameters())
        generator = server.generator("shuffle")
        for _ in server.epochs(server.config.epochs):
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for rows in torch.split(order, server.batch_size):
                loss = cross_entropy(head(prototypes[rows]), labels[rows])
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    torch._foreach_add_(weights, gradients, alpha=-server.config.eta_s)
        return pf.pack_weights(head, "head")
